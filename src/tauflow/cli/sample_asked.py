"""What the samples of `python sample.py` are asked to be: what is known, how long they are, a condition."""

import argparse
from typing import TYPE_CHECKING

from tauflow.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from tauflow.samplers import Prompt
    from tauflow.tasks import Task
    from tauflow.train import Trained


def sized(arguments: argparse.Namespace, trained: "Trained") -> "Trained":
    """Return a pretrained model with samples as long as --length, or as the text of --infill, says."""
    from tauflow.recipes.language import Language, resized
    from tauflow.tasks.task import places_of

    task, text = trained.task, arguments.infill
    if arguments.length is not None:
        return resized(trained, arguments.length)
    if text is None or not isinstance(task, Language):
        return trained
    longest = task.sized(task.context or 2 * len(text.encode()))
    return resized(trained, places_of(longest.infill(text)))


def known(arguments: argparse.Namespace, task: "Task") -> tuple["Prompt | None", "Tensor | None"]:
    """Return what is known of every sample, and which tokens (D, V) it may have; None: all of them."""
    from tauflow.samplers import Prompt
    from tauflow.tasks.task import find_hook

    prompt = _prompt(arguments, task)
    length = None if arguments.pretrained else arguments.length
    if length is None and not hasattr(task, "allowed"):
        return prompt, None
    allowed = find_hook(task, "allowed", "--length")(prompt, length)
    if allowed is None:
        return prompt, None
    single = allowed.sum(1) == 1  # known without an evaluation
    tokens = allowed.int().argmax(1)
    if prompt is not None:
        tokens, single = tokens.where(~prompt.known, prompt.tokens), single | prompt.known
    return Prompt(tokens, single), allowed


def _is_condition(arguments: argparse.Namespace, task: "Task") -> bool:
    """Return whether --prompt is a condition, as language models with an encoder take it."""
    if arguments.prompt is None or not task.conditions:
        return False
    from tauflow.recipes import Language

    return isinstance(task, Language)


def _prompt(arguments: argparse.Namespace, task: "Task") -> "Prompt | None":
    from tauflow.tasks.task import find_hook

    if arguments.prompt is not None and not _is_condition(arguments, task):
        return find_hook(task, "prompt", "--prompt")(arguments.prompt)
    if arguments.infill is not None:
        return find_hook(task, "infill", "--infill")(arguments.infill)
    if arguments.complete is not None:
        return find_hook(task, "complete", "--complete")(arguments.complete, arguments.keep)
    return None


def condition(arguments: argparse.Namespace, task: "Task") -> "Tensor | None":
    """Return what all samples are asked to be; of a picture to complete the class is open by default."""
    import torch

    from tauflow.denoise import DROPPED

    if _is_condition(arguments, task):
        if arguments.condition is not None:
            raise SettingsError(
                "--prompt is the condition of this model; give --prompt or --condition, not both"
            )
        return task.condition(arguments.prompt)
    if arguments.condition is not None:
        return task.condition(arguments.condition)
    return torch.full((len(task.conditions),), DROPPED) if arguments.complete and task.conditions else None
