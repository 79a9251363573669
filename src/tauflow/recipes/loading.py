"""pretrained: load a model that others have trained. convert: keep only what sampling it needs."""

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
    check_new,
    create_folder,
    find_folder,
    find_recipe,
    save_weights,
)
from tauflow.recipes.fudoki import FUDOKI, RELEASED_FUDOKI
from tauflow.recipes.language import resized
from tauflow.recipes.masked_lms import LANGUAGE, fill_native, is_native, list_unsaved
from tauflow.recipes.recipe import INSTALL, Config, Loaded, Recipe
from tauflow.train import Trained
from tauflow.untrusted import check_buffers, check_weights, limit_parameters

RECIPES: tuple[Recipe, ...] = (
    *(FUDOKI, RELEASED_FUDOKI, *DITS, FLOW_MATCHING, DIFFUSION_GEMMA, ANTIBERTY),
    *LANGUAGE,
)
"""All recipes. Add your own with `pretrained(recipes=...)`."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
TOKENIZER_JSON = "tokenizer.json"
WEIGHTS = "model.safetensors"


def pretrained(
    name: str | Path,
    dtype: str | torch.dtype | None = None,
    device_map: str | torch.device | None = None,
    rates: str | None = None,
    length: int | None = None,
    recipes: Sequence[Recipe] = RECIPES,
) -> Trained:
    """Load a pretrained model, and the task it was trained for, from a folder or the hub.

    Use it to sample language models, protein models, and text-to-image models that others have trained. For a
    checkpoint of your own run, use `tauflow.load`. To continue text with the model, use `tauflow.generate`.

    Weights are read from safetensors into Transformers classes, or from a pickle with `weights_only` if the
    recipe says there is nothing else. Code that comes with a model never runs. A model from the hub is
    downloaded if it isn't in the cache. With HF_HUB_OFFLINE=1 only the cache is used.

    Args:
        name: a folder, a name on the hub such as "GSAI-ML/LLaDA-8B-Instruct", or "antiberty", which is
            inside an installed package.
        dtype: of the network, such as "bfloat16", which takes half the memory. None is float32.
        device_map: the device that holds the model, such as "cuda:1". None is the CPU.
        rates: how to sample it. For FUDOKI, "metric" (the default) is the path of its training, and
            "mixture" is a mixture path with the same posterior.
        length: tokens per sample of a language model. None is 128.
        recipes: what can be loaded. Pass your own `Recipe` for a model that tauflow doesn't know.

    Returns:
        The model and its task. Pass `trained.model` to `tauflow.sample`.

    Example (downloads a model):
        >>> trained = tauflow.pretrained("answerdotai/ModernBERT-base", length=32)  # doctest: +SKIP
        >>> result = tauflow.sample(trained.model, nfe=16, count=2)  # doctest: +SKIP
        >>> trained.task.texts(result.tokens)  # doctest: +SKIP
    """
    wanted = _parse_dtype(dtype)
    device = _parse_device(device_map)
    folder = find_folder(name, recipes)
    recipe, config = find_recipe(folder, recipes)
    chosen = recipe.rates[0] if rates is None else rates
    if chosen not in recipe.rates:
        raise SettingsError(
            f"rates must be {' or '.join(recipe.rates)} for {recipe.name}, got {shorten(str(rates))!r}."
        )
    host = load_host(folder, recipe, config, wanted, device)
    trained = recipe.assemble(Loaded(host, folder, config, chosen, recipe))
    return trained if length is None else resized(trained, length)


def load_host(
    folder: Path, recipe: Recipe, config: Config, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Return a recipe's modules with the weights of a folder."""
    with Weights(folder, recipe) as weights:
        host, names = build_host(folder, recipe, config, weights)
        state = {}
        for name in names:
            weight = weights[name]
            if weight.dtype not in FLOATS:
                raise CheckpointError(
                    f"{shorten(name)} in {folder} has the type {weight.dtype}. Quantized weights aren't "
                    f"supported: get those in {FLOATS[0]}."
                )
            kept = torch.float32 if name.startswith(recipe.precise) else dtype
            state[name] = weight.to("cpu" if is_native(host) else device, kept)
    if is_native(host):
        host = fill_native(host, state, dtype, folder)
    else:
        host.load_state_dict(state, assign=True)
    return host.to(device).eval().requires_grad_(False)


def build_host(folder: Path, recipe: Recipe, config: Config, weights: Weights) -> tuple[nn.Module, list[str]]:
    """Return a recipe's modules on the meta device, and the names of the weights to read, which fit."""
    found = weights.shapes
    try:
        with torch.device("meta"), limit_parameters(4 * len(found) + 1000):
            host = recipe.host(config)
    except ImportError as error:
        raise SettingsError(f"{recipe.name} needs more packages ({first_line(error)}): {INSTALL}") from None
    except Exception as error:  # Transformers raises many kinds for sizes that make no sense
        raise CheckpointError(
            f"{folder / CONFIG} doesn't describe a {recipe.name} model: {shorten(str(error), 200)}"
        ) from None
    _adapt(host, recipe, found)
    wanted = host.state_dict()
    for name in list_unsaved(host, set(found)):
        del wanted[name]
    try:
        check_weights(wanted, found)
        check_buffers(host, found, sum(weight.nbytes for weight in found.values()))
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} doesn't describe the model next to it: {error}.") from None
    return host, list(wanted)


def _adapt(host: nn.Module, recipe: Recipe, found: dict[str, Tensor]) -> None:
    """Set optional weights that the folder doesn't have to None, and take widths that only the folder has."""
    for name in recipe.optional:
        if name not in found:
            owner, _, leaf = name.rpartition(".")
            setattr(host.get_submodule(owner), leaf, None)
    for name in recipe.any_width:
        if name in found and found[name].ndim == 2:
            rows = getattr(host, name).shape[0]
            setattr(host, name, torch.empty(rows, found[name].shape[1], device="meta"))


def _parse_dtype(dtype: Any) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None:
        found = torch.float32
    if found not in FLOATS:
        raise SettingsError(f"dtype must be a floating-point type such as 'bfloat16', got {dtype!r}.")
    return found


def _parse_device(device: Any) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(1, device=found).item()  # fails if there's no such device
        return found
    except (RuntimeError, TypeError, AssertionError):
        raise SettingsError(
            f"device_map must be one device such as 'cuda:0' for the whole model, got {device!r}."
        ) from None


def convert(name: str | Path, out: str | Path) -> list[str]:
    """Write a pretrained model to a new folder with only what sampling needs, under the names used here.

    Weights keep their numbers and types. The folder appears when it's complete. Return the names of optional
    weights that the model doesn't have.
    """
    out = Path(out)
    check_new(out)
    folder = find_folder(name, RECIPES)
    recipe, config = find_recipe(folder, RECIPES)
    targets = [each for each in RECIPES if each.model_type == config.get("model_type") and not each.keys]
    if not recipe.keys or not targets:
        raise CheckpointError(f"{folder} needs no conversion. Load it as it is.")
    if not (folder / TOKENIZER_JSON).is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER_JSON}, which prompts need. Download it again.")
    with Weights(folder, recipe) as weights:
        _, wanted = build_host(folder, recipe, config, weights)
        check_writable(out.parent, "choose another folder")
        tensors = {key: weights[key].contiguous() for key in wanted}
        with create_folder(out) as made:
            (made / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            shutil.copyfile(folder / TOKENIZER_JSON, made / TOKENIZER_JSON)
            save_weights(tensors, made / WEIGHTS)
    return [name for name in recipe.optional if name not in wanted]
