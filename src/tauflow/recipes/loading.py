"""pretrained: a model that others have trained, from a folder or the hub."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.errors import CheckpointError, SettingsError, first_line, shorten
from tauflow.files import check_writable
from tauflow.recipes.antibodies import ANTIBERTY
from tauflow.recipes.diffusion_gemma import DIFFUSION_GEMMA
from tauflow.recipes.dits import DITS
from tauflow.recipes.flow_matching import FLOW_MATCHING
from tauflow.recipes.folders import (
    CONFIG,
    Weights,
    folder_of,
    new_folder,
    recipe_of,
    refuse_existing,
    save_weights,
)
from tauflow.recipes.fudoki import FUDOKI, RELEASED_FUDOKI
from tauflow.recipes.language import resized
from tauflow.recipes.masked_lms import LANGUAGE, filled, is_native, unsaved
from tauflow.recipes.recipe import INSTALL, Config, Loaded, Recipe
from tauflow.train import Trained
from tauflow.untrusted import check_buffers, check_weights, limit_parameters

RECIPES: tuple[Recipe, ...] = (
    *(FUDOKI, RELEASED_FUDOKI, *DITS, FLOW_MATCHING, DIFFUSION_GEMMA, ANTIBERTY),
    *LANGUAGE,
)
"""The recipes there are."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def pretrained(
    name: str | Path,
    dtype: str | torch.dtype | None = None,
    device_map: str | torch.device | None = None,
    rates: str | None = None,
    length: int | None = None,
    recipes: Sequence[Recipe] = RECIPES,
) -> Trained:
    """Load a pretrained model, and the task that it was trained for, from a folder or the hub.

    Weights are read from safetensors, into classes of the transformers package, and from a pickle only where
    its recipe says that there is nothing else, by torch with `weights_only`; code that comes with a model is
    never run. A name of the hub is looked up in its cache and downloaded if it is not there; with
    HF_HUB_OFFLINE=1 only the cache is looked at.

    Args:
        name: a folder, a name of the hub such as "GSAI-ML/LLaDA-8B-Instruct", or "antiberty", which lies
            inside an installed package.
        dtype: of the network, such as "bfloat16", which takes half the memory; None is float32.
        device_map: the device that holds the model, such as "cuda:1"; None is the CPU.
        rates: how it is sampled; of FUDOKI "metric", the jumps of the path of its training (the default), or
            "mixture", those of a mixture path with the same posterior.
        length: tokens of a sample, of a language model; None is 128.
        recipes: what can be loaded; give one of your own for a model that is not known here.
    """
    wanted, device = _dtype(dtype), _device(device_map)
    folder = folder_of(name, recipes)
    recipe, config = recipe_of(folder, recipes)
    chosen = recipe.rates[0] if rates is None else rates
    if chosen not in recipe.rates:
        raise SettingsError(
            f"rates must be {' or '.join(recipe.rates)} for {recipe.name}, got {shorten(str(rates))!r}"
        )
    host = loaded_host(folder, recipe, config, wanted, device)
    trained = recipe.assemble(Loaded(host, folder, config, chosen, recipe))
    return trained if length is None else resized(trained, length)


def loaded_host(
    folder: Path, recipe: Recipe, config: Config, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Return the modules of a recipe with the weights of a folder, which must fit."""
    with Weights(folder, recipe) as weights:
        host, names = empty_host(folder, recipe, config, weights)
        state = {}
        for name in names:
            weight = weights[name]
            if weight.dtype not in FLOATS:
                raise CheckpointError(
                    f"{shorten(name)} in {folder} holds {weight.dtype}; weights that are quantised are not "
                    f"read, take those in {FLOATS[0]}"
                )
            kept = torch.float32 if name.startswith(recipe.precise) else dtype
            state[name] = weight.to("cpu" if is_native(host) else device, kept)
    if is_native(host):
        host = filled(host, state, dtype, folder)
    else:
        host.load_state_dict(state, assign=True)
    return host.to(device).eval().requires_grad_(False)


def empty_host(folder: Path, recipe: Recipe, config: Config, weights: Weights) -> tuple[nn.Module, list[str]]:
    """Return the modules of a recipe, without memory, and the names of the weights to read."""
    found = weights.shapes
    try:
        with torch.device("meta"), limit_parameters(4 * len(found) + 1000):
            host = recipe.host(config)
    except ImportError as error:
        raise SettingsError(f"{recipe.name} needs more packages ({first_line(error)}): {INSTALL}") from None
    except Exception as error:  # transformers raises many kinds for sizes that make no sense
        raise CheckpointError(
            f"{folder / CONFIG} doesn't describe a {recipe.name} model: {shorten(str(error), 200)}"
        ) from None
    _adapt_to(host, recipe, found)
    wanted = host.state_dict()
    for name in unsaved(host, set(found)):
        del wanted[name]
    try:
        check_weights(wanted, found)
        check_buffers(host, found, sum(weight.nbytes for weight in found.values()))
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} doesn't describe the model next to it: {error}.") from None
    return host, list(wanted)


def _adapt_to(host: nn.Module, recipe: Recipe, found: dict[str, Tensor]) -> None:
    """Set optional weights that the folder doesn't have to None, and take widths that only the folder has."""
    for name in recipe.optional:
        if name not in found:
            owner, _, leaf = name.rpartition(".")
            setattr(host.get_submodule(owner), leaf, None)
    for name in recipe.any_width:
        if name in found and found[name].ndim == 2:
            rows = getattr(host, name).shape[0]
            setattr(host, name, torch.empty(rows, found[name].shape[1], device="meta"))


def _dtype(dtype: Any) -> torch.dtype:
    """Return a floating-point type from itself or its name."""
    found = (
        torch.float32 if dtype is None else getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    )
    if found not in FLOATS:
        raise SettingsError(f"dtype must be a floating-point type such as 'bfloat16', got {dtype!r}")
    return found


def _device(device: Any) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
        if found.type == "meta":
            raise ValueError("it holds no weights")
        torch.empty(0, device=found)  # whether there is such a device
        return found
    except (RuntimeError, TypeError, ValueError, AssertionError):
        raise SettingsError(
            f"device_map must be one device such as 'cuda:0', which holds all of the model, got {device!r}"
        ) from None


# convert: a folder as released becomes one that holds only what is needed, under the names used here.


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
        check_writable(out.parent, "name another folder")
        tensors = {key: weights[key].contiguous() for key in wanted}
        with new_folder(out) as made:
            (made / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            shutil.copyfile(folder / TOKENIZER_JSON, made / TOKENIZER_JSON)
            save_weights(tensors, made / WEIGHTS)
    return [name for name in recipe.optional if name not in wanted]
