"""One clear line and an exit code instead of a traceback, for every error that a user can fix."""

import difflib
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from tauflow.errors import SettingsError, TauflowError
from tauflow.imports import import_object

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def suggest(word: str, names: Iterable[str], before: str = "") -> str:
    """Return " Did you mean NAME?" with the name most like a word; "" if none is."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f" Did you mean {before}{near[0]}?" if near else ""


@contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in this block, as SIGINT does."""

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_with_reader() -> NoReturn:
    """Exit without a message: the reader of a pipe has read enough, as `| head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
    sys.exit(128 + signal.SIGPIPE)


def print_page(text: str) -> None:
    """Print a text, of which the reader of a pipe may take a part."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        exit_with_reader()


@contextmanager
def exit_with_message(resume: str) -> Iterator[None]:
    """Exit with one line for every error that a user can fix, and when a signal stops the block.

    Args:
        resume: how the work continues after it was stopped; "" if it starts again.
    """
    from tauflow.distributed import is_lost_rank, rank

    try:
        with stop_on_sigterm():
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        exit_with_reader()
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        sys.exit(f"error: another process died or doesn't answer. {resume or 'Start again'}.")
    except TauflowError as error:
        sys.exit(1 if rank() else f"error: {error}")  # rank 0 prints it for all
    except OSError as error:
        sys.exit(f"error: cannot read or write a file: {error}")
    except KeyboardInterrupt as stop:
        if not rank():
            print(f"\nstopped. {resume}." if resume else "\nstopped", file=sys.stderr)
        sys.exit(128 + int(stop.args[0] if stop.args else signal.SIGINT))  # 130 for SIGINT, 143 for SIGTERM


# What train.py says of a setting: jsonargparse's report with the setting, the rule, the value, and the names
# that exist, and without its types. A report that isn't recognized is printed as it is.

TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
NOISE = re.compile(
    "Union subtypes|class types|Subtypes:|Errors:|Given value|Problem with given|Parser key|Expected a |"
    "- a (class|dict) "
)


def explain_parser(
    parser: "ArgumentParser", report: str, choices: Mapping[str, type], classes: Iterable[type]
) -> str:
    """Return what a report of jsonargparse means to the user, in a few lines.

    Args:
        choices: the base class of each setting that is a class.
        classes: the classes to choose from.
    """
    keys = list(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', report)))
    unknown = re.search(r"arguments: --([\w.]+)|[Oo]ption '([\w.]+)'", report)
    if not keys and unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        names = [flag.removeprefix("--") for flag in flags if re.fullmatch(r"--[\w.]+", flag)]
        word = unknown[1] or unknown[2]
        group = re.search(r"Group '([\w.]+)'", report)
        meant = suggest(f"{group[1]}.{word}" if group else word, names, "--")
        return f"{report}.{meant} --help lists all settings."
    setting = keys[0] if keys else "data"  # the only one that is required
    known = ""
    if setting in choices:
        base = choices[setting]
        package = base.__module__.rpartition(".")[0]
        listed = ", ".join(f"{package}.{each.__name__}" for each in classes if issubclass(each, base))
        known = f"\nKnown classes: {listed}; or your own as module.Class, from the current folder."
    if not keys:
        return report + known
    group = re.search("Unable to load config '(.*)'", report)
    if group:
        return (
            f"--{setting} must be a YAML file with its settings, got {group[1]}. Set one of them with "
            f"--{setting}.NAME VALUE."
        )
    for path in re.findall(r"(?:class_path '|import path string: )([\w.]+)", report):
        try:
            cls = import_object(path, choices.get(setting, object))
        except SettingsError as error:
            return f"--{setting}: {error}{known}"
        if unknown:
            return _list_settings(cls, unknown[1] or unknown[2])
        known = ""  # the class is fine
    return _explain_value(".".join(keys), report) + known


def _list_settings(cls: type, word: str) -> str:
    """Return that a class doesn't have a setting, and the settings it has."""
    from jsonargparse import ArgumentParser

    names = sorted(ArgumentParser(exit_on_error=False).add_class_arguments(cls))
    takes = ", ".join(names) or "none"
    return f"{cls.__name__} has no setting {word}.{suggest(word, names)} {cls.__name__} takes: {takes}."


def _explain_value(key: str, report: str) -> str:
    """Return what a value must be, and what it is."""
    values = re.findall(r"(?:Got|Given) value: (.*)", report)
    got = f", got {values[0]}" if values else ""
    facts = keep_facts(report)
    if facts:
        return f"--{key}: {facts}" + ("" if "Namespace" in got else got)
    rules = []
    for kind in dict.fromkeys(re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\])", report)):
        if kind.startswith("typing.Literal"):
            rules.append("one of " + kind.removeprefix("typing.Literal[").removesuffix("]").replace("'", ""))
        elif "NoneType" not in kind:
            name = kind.split("'")[1].rpartition(".")[2]
            rules.append(TYPES.get(name, f"a {name}"))
    return f"--{key} must be {' or '.join(rules)}{got}" if rules else report


def keep_facts(report: str) -> str:
    """Return the lines of a report, after the first, that aren't the same in every report."""
    lines = [line.strip(" -") for line in report.splitlines()[1:] if not NOISE.search(line)]
    return "; ".join(dict.fromkeys(filter(None, lines)))
