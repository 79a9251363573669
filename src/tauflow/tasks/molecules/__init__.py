"""Molecules as SMILES or SELFIES strings, with RDKit and the metrics of MOSES."""

from tauflow.tasks.molecules.task import Molecules

__all__ = ["Molecules"]
