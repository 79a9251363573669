"""AntiBERTy: a masked language model of antibodies, whose weights lie inside the package `antiberty` (MIT).

It is a BERT with three heads more, of species, chain and grafts, which sampling has no use for. Its
vocabulary lies one folder above its weights.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tauflow.errors import CheckpointError
from tauflow.recipes import masked_lms
from tauflow.recipes.antibodies.package import packaged
from tauflow.recipes.antibodies.task import HeavyChains
from tauflow.recipes.language import Language, TextTokens, resized
from tauflow.recipes.masked_lms import native, own_settings
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.train import Trained

FOLDER = "trained_models/AntiBERTy_md_smooth"  # of the package
VOCABULARY = "vocab.txt"


def antiberty_folder() -> Path:
    """Return the folder of the model in the installed package."""
    return packaged("antiberty", FOLDER)


def antiberty_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of AntiBERTy as those of BERT."""
    return {"class": "BertForMaskedLM", "settings": own_settings(config), "ends": []}


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task of heavy chains; residues are capital letters."""
    from transformers import BertTokenizer

    there = [each for each in (loaded.folder, loaded.folder.parent) if (each / VOCABULARY).is_file()]
    if not there:
        raise CheckpointError(f"neither {loaded.folder} nor the folder above it has a {VOCABULARY}")
    trained = masked_lms.assemble(dataclasses.replace(loaded, folder=there[0]))
    tokenizer = BertTokenizer.from_pretrained(there[0], do_lower_case=False, local_files_only=True)
    language = cast(Language, trained.task)
    text = TextTokens(tokenizer, language.text.ids, masked_lms.AMINO_ACIDS)
    task = HeavyChains(text, context=language.context)
    return resized(dataclasses.replace(trained, task=task), task.length)


ANTIBERTY = Recipe(
    name="antiberty",
    model_type="bert",
    host=native,
    assemble=assemble,
    architecture="AntiBERTy",
    package=antiberty_folder,
    config=antiberty_config,
    unused=(r".*\.position_ids$", r".*\.pooler\.", r"cls\.(species|chain|graft)\."),
    pickles=("pytorch_model.bin",),
    allowed=masked_lms.AMINO_ACIDS,
    framing=(("[CLS]",), ("[SEP]",)),
    tokenizer="BertTokenizer",
)
