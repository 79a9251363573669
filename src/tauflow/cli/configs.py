"""Arguments of train.py before the parser sees them: readable files of this version, loggers with a place."""

import inspect
import json
import re
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from tauflow.errors import SettingsError
from tauflow.imports import import_object
from tauflow.train.upgrade import OPTIMIZER

GROUPS = ("trainer", "model", "evaluation", "checkpoints")
HERE = ""  # stands for the folder of the run, as the place of a logger


def prepared(arguments: list[str]) -> list[str]:
    """Return the arguments with configuration files of an earlier version converted in memory.

    A logger without a folder writes to the folder of the run.
    """
    found = list(arguments)
    for number, word in enumerate(arguments):
        flag, sign, value = word.partition("=")
        before = arguments[number - 1] if number else ""
        if flag in ("-c", "--config") and sign:
            found[number] = f"--config={_file(value)}"
        elif flag in ("--trainer.logger", "--trainer.logger+") and sign:
            found[number] = f"{flag}={_logger_text(value)}"
        elif before in ("-c", "--config"):
            found[number] = _file(word)
        elif before in ("--trainer.logger", "--trainer.logger+"):
            found[number] = _logger_text(word)
        elif re.match("-c[^=]", word):
            found[number] = f"--config={_file(word[2:])}"
    return found


def _file(name: str) -> str:
    """Return a configuration file's name, or its converted text."""
    path = Path(name)
    if not name.strip():
        raise SettingsError("--config is empty. Pass a YAML file, or remove it for the default one.")
    if "\n" in name or name.lstrip().startswith("{"):
        _parsed(name, "the configuration")
        return name
    if not path.is_file():
        raise SettingsError(
            f"Configuration file not found: {path}. Pass a YAML file, such as configs/countdown.yaml."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{path} isn't a configuration: {error}") from None
    config = _parsed(text, str(path))
    if not isinstance(config, dict):
        raise SettingsError(f"{path} holds no settings; write lines such as `trainer: {{max_steps: 100}}`")
    for group in GROUPS:
        if not isinstance(config.get(group), dict | NoneType):
            raise SettingsError(f"{path}: {group} must hold settings, got {config[group]!r:.80}")
    changed = _upgraded(config) | _with_places(config)
    return yaml.safe_dump(config, sort_keys=False) if changed else name


def _parsed(text: str, name: str) -> Any:
    """Return what YAML says."""
    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{name} isn't valid YAML: {' '.join(str(error).split())[:300]}") from None


def _upgraded(config: dict[str, Any]) -> bool:
    """Set what has moved into a group since where it belongs now; return whether there was any."""
    model = config.get("model")
    if not isinstance(model, dict):
        return False
    moved = [name for name in OPTIMIZER if name in model]
    for name in moved:
        model.setdefault("optimizer", {})[name] = model.pop(name)
    return bool(moved)


def _with_places(config: dict[str, Any]) -> bool:
    """Give a place to the loggers of a configuration; return whether one had none."""
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or "logger" not in trainer:
        return False
    before = trainer["logger"]
    trainer["logger"] = _placed(before)
    return trainer["logger"] != before


def _logger_text(text: str) -> str:
    value = _parsed(text, "--trainer.logger")
    placed = _placed(value)
    return text if placed == value else json.dumps(placed)


def _placed(value: Any) -> Any:
    """Return the setting of one or several loggers; one that names no place gets that of the run."""
    if isinstance(value, list):
        return [_placed(each) for each in value]
    setting = {"class_path": value} if isinstance(value, str) else value
    if not isinstance(setting, dict) or not _needs_a_place(str(setting.get("class_path"))):
        return value
    arguments = setting.get("init_args") or {}
    return {**setting, "init_args": {"save_dir": HERE, **arguments}} if isinstance(arguments, dict) else value


def _needs_a_place(name: str) -> bool:
    try:
        cls = import_object(name if "." in name else f"{loggers.__name__}.{name}", Logger)
    except SettingsError:
        return False  # the parser says what is wrong with it
    place = inspect.signature(cls).parameters.get("save_dir")
    return place is not None and place.default is place.empty
