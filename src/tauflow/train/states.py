"""The states that training continues from: what they must look like, so that Lightning can restore them.

Lightning and torch copy what a file says into their objects, and fail later, if at all.
"""

import math
import re
from typing import Any

import torch
from torch import Tensor

from tauflow.train.module import DFMModule

COMPLETED = {"ready": 0, "completed": 0}
STARTED = COMPLETED | {"started": 0}
PROCESSED = STARTED | {"processed": 0}


def _both(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"total": counts, "current": counts}


BATCHES = _both(PROCESSED) | {"is_last_batch": False}
FIT_LOOP = {
    "state_dict": {},
    "epoch_progress": _both(PROCESSED),
    "epoch_loop.state_dict": {"_batches_that_stepped": 0},
    "epoch_loop.batch_progress": BATCHES,
    "epoch_loop.scheduler_progress": _both(COMPLETED),
    "epoch_loop.automatic_optimization.state_dict": {},
    "epoch_loop.automatic_optimization.optim_progress": {
        "optimizer": {"step": _both(COMPLETED), "zero_grad": _both(STARTED)}
    },
    "epoch_loop.manual_optimization.state_dict": {},
    "epoch_loop.manual_optimization.optim_step_progress": _both(COMPLETED),
    "epoch_loop.val_loop.state_dict": {},
    "epoch_loop.val_loop.batch_progress": BATCHES,
}
"""What a checkpoint of Lightning 2 says of the loop that trains."""
MISSING = object()
PARTS: dict[str, Any] = {
    "epoch": 0,
    "pytorch-lightning_version": "",
    "loops": {"fit_loop": FIT_LOOP},
    "callbacks": {},
    "optimizer_states": [{"state": {}}],
    "lr_schedulers": [{}],
}
"""What a checkpoint has that training can continue from."""


GROUP = ("params", "lr", "initial_lr", "betas", "eps", "weight_decay")
FLAGS = ("amsgrad", "maximize", "capturable", "differentiable")  # what they change needs states of its own
SCHEDULER = ("last_epoch", "_step_count", "base_lrs", "_last_lr", "lr_lambdas")
"""What the groups of an optimizer, and its schedule, have in every version of torch; others have more."""


def fault_of_parts(checkpoint: dict[str, Any]) -> str:
    """Return which part of a checkpoint nothing can be resumed from, whatever its model is; "" for none."""
    fault = unlike(checkpoint, PARTS)
    if fault:
        return fault
    if not re.match(r"[2-9]\.\d+", checkpoint["pytorch-lightning_version"]):
        return "pytorch-lightning_version"
    loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", [])
    if not isinstance(loaders, list) or not all(isinstance(each, dict) for each in loaders):
        return "loops.fit_loop.state_dict.combined_loader"
    return unlike(checkpoint["callbacks"], {name: {} for name in checkpoint["callbacks"]}, "callbacks")


def fault_of_optimizer(checkpoint: dict[str, Any], module: DFMModule) -> str:
    """Return which state of the optimizer, or of its learning rate, does not fit a module; "" for none."""
    optimizer = module.optimizer_config.build(module.network.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0).state_dict()
    [state], [found] = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    moments = {
        number: {"step": torch.zeros(()), "exp_avg": weight, "exp_avg_sq": weight}
        for number, weight in enumerate(weights)
    }
    if not state["state"].keys() <= moments.keys() or not found.keys() <= {*schedule, "verbose"}:
        return "optimizer"
    groups = optimizer.state_dict()["param_groups"]
    fault = unlike(state, {"param_groups": [{name: group[name] for name in GROUP} for group in groups]})
    pairs = [] if fault else list(zip(groups, state["param_groups"], strict=True))
    if fault or any(there.get(name, group[name]) != group[name] for group, there in pairs for name in FLAGS):
        return f"optimizer_states.{fault or 'param_groups'}"
    moved = {number: moments[number] for number in state["state"]}
    wanted = {"state": moved, "param_groups": [_present(*pair) for pair in pairs]}
    plan = {name: schedule[name] for name in SCHEDULER} | _present(schedule, found)
    return unlike(checkpoint, {"optimizer_states": [wanted], "lr_schedulers": [plan]})


def _present(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if name in found}


def unlike(value: Any, wanted: Any, where: str = "") -> str:
    """Return where a value is not like the wanted one, which has the keys, types and shapes; "" for nowhere.

    More keys are fine; a number that is counted is never below 0.
    """
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return where
        inside = [(key, value.get(key, MISSING), item) for key, item in wanted.items()]
    elif isinstance(wanted, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(wanted):
            return where
        inside = [(key, *pair) for key, pair in enumerate(zip(value, wanted, strict=True))]
    else:
        return "" if _fits(value, wanted) else where
    faults = (unlike(item, asked, f"{where}.{key}".lstrip(".")) for key, item, asked in inside)
    return next((fault for fault in faults if fault), "")


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Tensor):
        alike = isinstance(value, Tensor) and value.shape == wanted.shape
        return alike and value.is_floating_point() == wanted.is_floating_point() and not _repeats(value)
    if type(wanted) is int:
        return type(value) is int and value >= 0
    if type(wanted) is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is type(wanted)


def _repeats(tensor: Tensor) -> bool:
    """Return whether a tensor has fewer numbers in memory than its shape says."""
    return tensor.nbytes > tensor.untyped_storage().nbytes()
