"""convert: a folder as released becomes one that holds only what is needed, under the names used here."""

import json
import shutil
from pathlib import Path

from tauflow.errors import CheckpointError
from tauflow.files import refuse_unwritable
from tauflow.recipes.folders import CONFIG, folder_of, new_folder, recipe_of, refuse_existing
from tauflow.recipes.loading import RECIPES, empty_host
from tauflow.recipes.weights import Weights, save_weights

TOKENIZER_JSON = "tokenizer.json"
WEIGHTS = "model.safetensors"


def convert(name: str | Path, out: str | Path) -> list[str]:
    """Write a pretrained model to a new folder, which appears when it is complete.

    Weights keep their numbers and types. Those that are not needed to sample are dropped. Return the names of
    optional ones that are not there.
    """
    out = Path(out)
    refuse_existing(out)
    folder = folder_of(name, RECIPES)
    recipe, config = recipe_of(folder, RECIPES)
    own = [each for each in RECIPES if each.model_type == config.get("model_type") and not each.keys]
    if not recipe.keys or not own:
        raise CheckpointError(f"{folder} needs no conversion; load it as it is")
    if not (folder / TOKENIZER_JSON).is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER_JSON}, which prompts need; get it again")
    with Weights(folder, recipe) as weights:
        _, wanted = empty_host(folder, recipe, config, weights)
        refuse_unwritable(out.parent, "name another folder")
        tensors = {key: weights[key].contiguous() for key in wanted}
        with new_folder(out) as made:
            (made / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            shutil.copyfile(folder / TOKENIZER_JSON, made / TOKENIZER_JSON)
            save_weights(tensors, made / WEIGHTS)
    return [name for name in recipe.optional if name not in wanted]
