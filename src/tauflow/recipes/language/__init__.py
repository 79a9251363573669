"""Language models that others have trained: their ids as tokens, their texts, and the recipes."""

from tauflow.recipes.language.hosts import LanguageHost
from tauflow.recipes.language.ids import IdNetwork, Ids
from tauflow.recipes.language.models import LANGUAGE
from tauflow.recipes.language.task import Language, resized
from tauflow.recipes.language.tokens import TextTokens
from tauflow.samplers.run import unprompted

__all__ = ["LANGUAGE", "IdNetwork", "Ids", "Language", "LanguageHost", "TextTokens", "resized", "unprompted"]
