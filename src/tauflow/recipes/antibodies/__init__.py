"""Antibodies: AntiBERTy as a model, Sapiens as a judge, and heavy chains as the task."""

from tauflow.recipes.antibodies.antiberty import ANTIBERTY, antiberty_folder
from tauflow.recipes.antibodies.chains import ADALIMUMAB, PERTUZUMAB, TRASTUZUMAB, Antibody, Design
from tauflow.recipes.antibodies.sapiens import Sapiens
from tauflow.recipes.antibodies.task import HeavyChains, designed

__all__ = [
    "ADALIMUMAB",
    "ANTIBERTY",
    "PERTUZUMAB",
    "TRASTUZUMAB",
    "Antibody",
    "Design",
    "HeavyChains",
    "Sapiens",
    "antiberty_folder",
    "designed",
]
