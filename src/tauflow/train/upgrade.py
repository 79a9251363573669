"""Checkpoints of format 1, as this version describes models."""

from typing import Any

from tauflow.process import SCHEDULES, Masked, Uniform, schedule_from
from tauflow.train.described import describe

MOVED = {
    "tauflow.module.DFMModule": "tauflow.train.module.DFMModule",
    "tauflow.networks.TransformerConfig": "tauflow.networks.transformer.TransformerConfig",
    "tauflow.tasks.text.Text": "tauflow.tasks.text.task.Text",
    "tauflow.schedules.Polynomial": "tauflow.process.schedules.Polynomial",
    "tauflow.schedules.Cosine": "tauflow.process.schedules.Cosine",
    "tauflow.schedules.CosineSquared": "tauflow.process.schedules.CosineSquared",
}
OPTIMIZER = ("learning_rate", "warmup_steps", "weight_decay", "betas", "ema_decay")
NOT_BUILT = {"num_tokens", "seq_len", *OPTIMIZER}


def upgraded(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a format-1 checkpoint in format 2; what is unknown stays, and is refused later."""
    entry = _moved(entry)
    arguments = entry["model"].get("init_args")
    if isinstance(arguments, dict) and {"num_tokens", "seq_len"} <= arguments.keys():
        entry["model"]["init_args"] = _arguments(arguments)
    return entry | {"format": 2}


def _arguments(old: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model: sizes are facts of the data now, the optimizer has its own."""
    facts = {"num_tokens": old["num_tokens"], "shape": [old["seq_len"]], "conditions": [], "unigrams": None}
    optimizer = {name: old[name] for name in OPTIMIZER if name in old}
    new = {name: value for name, value in old.items() if name not in NOT_BUILT}
    new["facts"] = {"class_path": "tauflow.tasks.base.DataFacts", "init_args": facts}
    new["optimizer"] = {"class_path": "tauflow.train.optimizer.OptimizerConfig", "init_args": optimizer}
    source = {"masked": Masked, "uniform": Uniform}.get(str(old.get("source")))
    if source is not None:
        new["source"] = describe(source(old["num_tokens"]))
    named = [name for name in SCHEDULES if name != "polynomial"]  # that one was never a name alone
    if old.get("schedule") in named:
        new["schedule"] = describe(schedule_from(old["schedule"]))
    return new


def _moved(value: Any) -> Any:
    """Return plain data with the new names of classes that have moved."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {key: _moved(item) for key, item in value.items()}
    if isinstance(new.get("class_path"), str):
        new["class_path"] = MOVED.get(new["class_path"], new["class_path"])
    return new
