"""What was wrong with a setting, in a sentence and with the fix, instead of the parser's report."""

import difflib
import re
from typing import NamedTuple

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser

from tauflow.errors import SettingsError
from tauflow.imports import import_object
from tauflow.networks import NetworkConfig
from tauflow.process import Schedule
from tauflow.tasks import Task
from tauflow.train.trained import CLASSES


class Choice(NamedTuple):
    """A setting that is a class: of what kind, and where those of the project are."""

    kind: type
    package: str
    plural: str


CHOICES = {
    "data": Choice(Task, "tauflow.tasks", "tasks"),
    "model.network": Choice(NetworkConfig, "tauflow.networks", "networks"),
    "model.schedule": Choice(Schedule, "tauflow.process.schedules", "schedules"),
}
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
MANY = 20  # settings that are too many to list
CLASS_PATH = r"class_path'?:? '([\w.]+)'|import path string: ([\w.]+)|Import path ([\w.]+) does"
NOISE = (
    "Union subtypes|class types|Subtypes:|Errors:|Given value|Problem with given|Parser key|Expected a |"
    "- a (class|dict) "
)


def explained(parser: LightningArgumentParser, message: str) -> str:
    """Return what a message of the parser means to the user, in a few lines."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    if not keys:
        needs_task = message.endswith("required: data")
        return message + (_known("data") if needs_task else _accepted(parser, message))
    group = re.search("Unable to load config '(.*)'", message)
    if group:
        return (
            f"--{keys[0]} must be a YAML file with its settings, got {group[1]}. Set one of them with "
            f"--{keys[0]}.NAME VALUE."
        )
    path = _class_path(message)
    if not path:
        return _about_value(".".join(keys), message) + _known(keys[0])
    return _about_class(keys[0], path, message) or _about_value(".".join(keys), message)


def _class_path(message: str) -> str:
    """Return the one class that a message is about; "" if there is none, or several."""
    found = {next(filter(None, groups)) for groups in re.findall(CLASS_PATH, message)}
    return found.pop() if len(found) == 1 else ""


def _about_class(key: str, path: str, message: str) -> str:
    """Return what is wrong with a class, or with a setting that it does not have; "" if with a value."""
    try:
        found = import_object(path, CHOICES[key].kind if key in CHOICES else object)
    except SettingsError as error:
        return f"--{key}: {error}{_known(key)}"
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    return _no_setting(found, option[1]) if option else ""


def _no_setting(cls: type, word: str) -> str:
    """Return that a class has no such setting, and those that it has."""
    names = sorted(ArgumentParser(exit_on_error=False).add_class_arguments(cls))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}? " if near else ". "
    return f"{cls.__name__} has no setting {word}{hint}{cls.__name__} takes: {', '.join(names) or 'none'}"


def _known(key: str) -> str:
    """Return a line with the project's own classes for a setting; "" if it is not one that is a class."""
    if key not in CHOICES:
        return ""
    kind, package, plural = CHOICES[key]
    names = ", ".join(f"{package}.{each.__name__}" for each in CLASSES if issubclass(each, kind))
    return f"\nKnown {plural}: {names}; or one of your own as module.Class, from the current folder"


def _about_value(key: str, message: str) -> str:
    """Return what a value must be and what it is."""
    found = re.search(r"Got value: (.*)|Given value: (.*)", message)
    got = next(filter(None, found.groups()), "nothing") if found else ""
    said = essence(message)
    if said:
        named = not found or got in said or got.startswith("Namespace")
        return f"--{key}: {said}" + ("" if named else f", got {got}")
    expected = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", message)
    wanted = [_in_words(each) for each in dict.fromkeys(expected) if "NoneType" not in each]
    return f"--{key} must be {' or '.join(wanted)}, got {got}" if wanted and found else message


def essence(message: str) -> str:
    """Return what a report of the parser says after its first line, without what every report says."""
    lines = [line.strip(" -") for line in message.splitlines()[1:] if not re.search(NOISE, line)]
    return "; ".join(dict.fromkeys(filter(None, lines)))


def _in_words(kind: str) -> str:
    if kind.startswith("typing.Literal"):
        return "one of " + kind.removeprefix("typing.Literal[").removesuffix("]").replace("'", "")
    name = kind.split("'")[1]
    return TYPES.get(name, f"a {name.rpartition('.')[2]}")


def _accepted(parser: LightningArgumentParser, message: str) -> str:
    """Return, for a message about an unknown flag or key, what was meant and what is accepted beside it."""
    unknown = re.search(r"arguments: --([\w.]+)|[Oo]ption '([\w.]+)'", message)
    if not unknown:
        return ""
    flags = [option for action in parser._actions for option in action.option_strings]
    settings = {flag.removeprefix("--") for flag in flags if re.fullmatch(r"--[\w.]+", flag)}
    settings.discard("print_shtab")
    group = re.search(r"Group '([\w.]+)'", message)
    word = unknown[1] or unknown[2]
    close = difflib.get_close_matches(f"{group[1]}.{word}" if group else word, settings, n=1, cutoff=0.5)
    above = close[0].rpartition(".")[0] if close else ""
    siblings = sorted(key.rpartition(".")[2] for key in settings if key.rpartition(".")[0] == above)
    siblings = [key for key in siblings if not re.match("help|config|print_", key)]
    hint = f"\nDid you mean {close[0]}?" if close else ""
    if not above:
        return f"{hint}\nSettings are grouped in: {', '.join(siblings)}"
    listed = f"{above} takes: {', '.join(siblings)}" if len(siblings) <= MANY else "--help lists all settings"
    return f"{hint} {listed}"
