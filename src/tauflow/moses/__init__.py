"""Molecules as SMILES: the metrics of the MOSES benchmark, properties and drawings.

RDKit and fcd_torch (ChemNet) are imported where they are used; data, statistics and patterns of MOSES are
files of the package `molsets`, which is never imported.
"""

from tauflow.moses.chemistry import PROPERTIES, canonical, properties
from tauflow.moses.drawings import draw
from tauflow.moses.filters import Filters
from tauflow.moses.metrics import moses_metrics
from tauflow.moses.package import dataset
from tauflow.moses.reference import Reference

__all__ = [
    "PROPERTIES",
    "Filters",
    "Reference",
    "canonical",
    "dataset",
    "draw",
    "moses_metrics",
    "properties",
]
