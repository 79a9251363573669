"""Models that others have trained: `pretrained` loads them, recipes say how."""

from tauflow.recipes.fudoki import Framing, Prompts, TextToImage
from tauflow.recipes.language import Language
from tauflow.recipes.loading import RECIPES, convert, pretrained
from tauflow.recipes.recipe import Loaded, Recipe

__all__ = [
    "RECIPES",
    "Framing",
    "Language",
    "Loaded",
    "Prompts",
    "Recipe",
    "TextToImage",
    "convert",
    "pretrained",
]
