"""What was wrong with a setting, in a sentence and with the fix, instead of the parser's report."""

import difflib
import inspect
import re
import sys
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
CLASS_PATH = r"class_path'?:? '([\w.]+)'|key='class_path', val='([\w.]+)'|Import path ([\w.]+) does"
DOTTED = r"import path string: ([\w.]+)|Given value: ([A-Za-z_]\w*(?:\.\w+)+)$|but ([\w.]+) is abstract"
NOISE = "Union subtypes|class types|Subtypes:|Errors:|Given value|NoneType|Expected a path|- a (class|dict) "


def explained(parser: LightningArgumentParser, message: str) -> str:
    """Return what a message of the parser means to the user, in a few lines."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    if not keys:
        needs_task = message.endswith("required: data")
        return message + (_known("data") if needs_task else _accepted(parser, message))
    path = _class_path(message)
    if path:
        found = _about_class(keys[0], path, message)
        if found:
            return found
    known = "" if path else _known(keys[0])
    return _about_value(".".join(keys), message) + known


def cannot_be_made(error: TypeError, paths: list[str]) -> str:
    """Return why one of these classes could not be made, "" if the error is about something else."""
    found = re.search(r"abstract class (\w+)|([\w.]+)\.__init__\(\)", str(error))
    name = found and (found[1] or found[2])
    path = next((path for path in paths if re.split("[.:]", path)[-1] == name), "")
    missing = re.search(r"abstract methods? (.+)", str(error))
    reason = "it does not define " + missing[1].replace("'", "") if missing else str(error)
    return f"{path} cannot be made: {reason}" if path else ""


def _class_path(message: str) -> str:
    """Return the class that a message is about: the innermost that was configured; "" if there is none."""
    inner = re.findall(r"given class_path '([\w.]+)'", message)
    if inner:
        return inner[-1]
    found = re.search(CLASS_PATH, message) or re.search(DOTTED, message, re.MULTILINE)
    return next(filter(None, found.groups()), "") if found else ""


def _about_class(key: str, path: str, message: str) -> str:
    """Return what is wrong with a class, or with a setting that it does not have; "" if with a value."""
    nested = len(set(re.findall(r"given class_path '([\w.]+)'", message))) > 1
    kind: type = CHOICES[key].kind if key in CHOICES and not nested else object
    if "." not in path:
        return f"--{key}: {path} is not the import path of a class{_known(key)}"
    try:
        found = import_object(path, kind)
    except SettingsError as error:
        return f"--{key}: {error}" + ("" if "did you mean" in str(error) else _instead(key, path))
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    if option:
        return _no_setting(found, option[1])
    if found is kind:  # no class was named, and the kind itself was taken for it
        return f"--{key}: name the class first{_known(key)}"
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__")))  # noqa: B009 - types have none
        return f"{path} cannot be made: it does not define {missing}"
    required = re.search(r"arguments are required: (.+)", message)
    if required:
        flags = " ".join(f"--{key}.{name.strip()} ..." for name in required[1].split(","))
        return f"{found.__name__} needs {required[1]}: give {flags}"
    return ""


def _no_setting(cls: type, word: str) -> str:
    """Return that a class has no such setting, and those that it has."""
    names = sorted(ArgumentParser(exit_on_error=False).add_class_arguments(cls))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}? " if near else ". "
    return f"{cls.__name__} has no setting {word}{hint}{cls.__name__} takes: {', '.join(names) or 'none'}"


def _instead(key: str, path: str) -> str:
    """Return the classes of the right kind in the module of one that is none; without any, the known ones."""
    module = sys.modules.get(path.rpartition(".")[0])
    if key not in CHOICES or module is None:
        return _known(key)
    kind = CHOICES[key].kind
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, kind)]
    paths = [f"{module.__name__}.{each.__name__}" for each in classes if not inspect.isabstract(each)]
    if not paths:
        return _known(key)
    if kind is NetworkConfig:
        return f"; name the config, e.g. {paths[0]}"
    return f"; there is {', '.join(paths)}"


def _known(key: str) -> str:
    """Return a line with the project's own classes for a setting; "" if it is not one that is a class."""
    if key not in CHOICES:
        return ""
    kind, package, plural = CHOICES[key]
    names = ", ".join(f"{package}.{each.__name__}" for each in CLASSES if issubclass(each, kind))
    return f"\nKnown {plural}: {names}; or one of your own as module.Class, from the current folder"


def _about_value(key: str, message: str) -> str:
    """Return what a value must be and what it is; if the message does not say so, its essence."""
    expected = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", message)
    got = re.search(r"Got value: (.*)|, val='(.*)'\)$|Given value: (.*)", message, re.MULTILINE)
    wanted = [_in_words(each) for each in dict.fromkeys(expected) if "NoneType" not in each]
    if wanted and got:
        return f"--{key} must be {' or '.join(wanted)}, got {next(filter(None, got.groups()), 'nothing')}"
    said = essence(message)
    return f"--{key}: {said}" if said else message


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
