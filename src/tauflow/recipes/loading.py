"""pretrained: a model that others have trained, from a folder or the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tauflow.errors import CheckpointError, SettingsError
from tauflow.recipes.base import INSTALL, Config, Recipe
from tauflow.recipes.folders import CONFIG, Weights, folder_of, recipe_of
from tauflow.recipes.fudoki import FUDOKI, RELEASED
from tauflow.train import Trained
from tauflow.train.archive import listed, shortened

RECIPES: tuple[Recipe, ...] = (FUDOKI, RELEASED)
"""The recipes there are."""


def pretrained(
    name: str | Path,
    dtype: str | torch.dtype | None = None,
    device_map: str | torch.device | None = None,
    rates: str | None = None,
    recipes: Sequence[Recipe] = RECIPES,
) -> Trained:
    """Load a pretrained model, and the task that it was trained for, from a folder or the hub.

    Weights are read from safetensors only, into classes of the transformers package; code that comes with a
    model is never run. A name of the hub is looked up in its cache and downloaded if it is not there; with
    HF_HUB_OFFLINE=1 only the cache is looked at.

    Args:
        name: a folder, or a name of the hub such as "LucasJinWang/FUDOKI".
        dtype: of the network, such as "bfloat16", which takes half the memory; None is float32.
        device_map: the device that holds the model, such as "cuda:1"; None is the CPU.
        rates: how it is sampled; of FUDOKI "metric", the jumps of the path of its training (the default), or
            "mixture", those of a mixture path with the same posterior.
        recipes: what can be loaded; give one of your own for a model that is not known here.
    """
    wanted, device = _dtype(dtype), _device(device_map)
    folder = folder_of(name, recipes)
    recipe, config = recipe_of(folder, recipes)
    chosen = recipe.rates[0] if rates is None else rates
    if chosen not in recipe.rates:
        raise SettingsError(
            f"rates must be {' or '.join(recipe.rates)} for {recipe.name}, got {shortened(str(rates))!r}"
        )
    host = loaded_host(folder, recipe, config, wanted, device)
    return recipe.assemble(host, folder, config, chosen)


def loaded_host(
    folder: Path, recipe: Recipe, config: Config, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Return the modules of a recipe with the weights of a folder, which must fit."""
    host = empty_host(folder, recipe, config)
    with Weights(folder, recipe) as weights:
        state = {}
        for name in wanted_shapes(folder, recipe, host, weights):
            kept = torch.float32 if name.startswith(recipe.precise) else dtype
            state[name] = weights[name].to(device, kept)
    host.load_state_dict(state, assign=True)
    return host.to(device).eval().requires_grad_(False)


def empty_host(folder: Path, recipe: Recipe, config: Config) -> nn.Module:
    """Return the modules of a recipe without memory for their weights."""
    try:
        with torch.device("meta"):
            return recipe.host(config)
    except ImportError as error:
        raise SettingsError(
            f"{recipe.name} needs more packages ({shortened(str(error))}): {INSTALL}"
        ) from None
    except Exception as error:  # transformers raises many kinds for sizes that mean nothing
        raise CheckpointError(
            f"the sizes in {folder / CONFIG} are none of a {recipe.name} model: {shortened(str(error))}"
        ) from None


def wanted_shapes(
    folder: Path, recipe: Recipe, host: nn.Module, weights: Weights
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights of a host; refuse a folder that has others.

    What is optional and missing is None in the host.
    """
    found = weights.shapes
    for name in recipe.optional:
        if name not in found:
            setattr(host, name, None)
    for name in recipe.any_width:
        if len(found.get(name, ())) == 2:
            rows = getattr(host, name).shape[0]
            setattr(host, name, torch.empty(rows, found[name][1], device="meta"))
    wanted = {name: tuple(weight.shape) for name, weight in host.state_dict().items()}
    shared = sorted(wanted.keys() & found.keys())
    faults = {
        "missing": sorted(wanted.keys() - found.keys()),
        "not known": sorted(found.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {found[name]} instead of {wanted[name]}"
            for name in shared
            if found[name] != wanted[name]
        ],
    }
    said = [f"{what}: {listed(names)}" for what, names in faults.items() if names]
    if said:
        raise CheckpointError(
            f"the weights in {folder} are not those that its config.json describes; {'; '.join(said)}"
        )
    return wanted


def _dtype(dtype: Any) -> torch.dtype:
    """Return a floating-point type from itself or its name."""
    found = (
        torch.float32 if dtype is None else getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    )
    if found not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
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
