"""Models that others have trained: `pretrained` loads them, and a `Recipe` describes how.

The package isn't called `pretrained`, because that name is the function `tauflow.pretrained`.
"""

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
