"""Molecules as strings: SMILES or SELFIES, judged by RDKit and the metrics of MOSES."""

from tauflow.tasks.molecules.task import Molecules

__all__ = ["Molecules"]
