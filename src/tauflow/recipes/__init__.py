"""Models that others have trained: `pretrained` loads them, recipes say how."""

from tauflow.recipes.base import Loaded, Recipe
from tauflow.recipes.convert import convert
from tauflow.recipes.framing import Framing, Prompts
from tauflow.recipes.language import Language
from tauflow.recipes.loading import RECIPES, pretrained
from tauflow.recipes.text_to_image import TextToImage

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
