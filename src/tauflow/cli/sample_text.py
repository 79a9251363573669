"""Text of a pretrained language model in `python sample.py`: one sampler, one budget, and a live view.

Shapes: B samples, N new tokens.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tauflow.cli.sample_values import numbers, weights
from tauflow.errors import SettingsError
from tauflow.samplers import SETS, sampler_from, split_specs

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from rich.text import Text

    from tauflow.recipes.generation import Observer, Step
    from tauflow.recipes.language import Language

HIDDEN = "░"  # what a token that is not there yet is shown as
OWN = ("max_new_tokens", "block", "chat")
TABLES = (
    *("out", "tensorboard", "judge", "show", "batch_size", "nll_items", "devices"),
    *("length", "condition", "unconditional"),
)
"""Arguments that are about tables of samplers and budgets, besides several of these."""


def add_text_arguments(group: Any) -> None:
    """Add the arguments of a text that is generated."""
    group.add_argument(
        "--max_new_tokens",
        type=int,
        metavar="N",
        help="tokens after --prompt, of a language model (default a block of the model, or 128)",
    )
    group.add_argument(
        "--block", type=int, metavar="K", help="tokens that are sampled together, one block after the other"
    )
    group.add_argument("--chat", action="store_true", help="--prompt is a message that the model answers")


def asks_for_text(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> bool:
    """Return whether a pretrained model is asked for one text and no table; refuse what is half of each."""
    own = [name for name in OWN if getattr(arguments, name) not in (None, False)]
    if not arguments.pretrained or arguments.prompt is None:
        if own:
            raise SettingsError(f"--{own[0]} is about texts: --pretrained NAME --prompt TEXT; drop it")
        return False
    specs = split_specs(arguments.sampler)
    tables = [name for name in TABLES if getattr(arguments, name) != parser.get_default(name)]
    tables += ["sampler"] if len(specs) != 1 or specs[0].lower() in SETS else []
    tables += ["nfe"] if len(numbers(arguments.nfe, "--nfe")) > 1 else []
    tables += ["guidance"] if len(weights(arguments.guidance)) > 1 else []
    if own and tables:
        raise SettingsError(
            f"--{own[0]} is about one text, --{tables[0]} asks for a table of samplers and budgets; drop one "
            "of them"
        )
    return not tables


def generate_text(arguments: argparse.Namespace, fabric: "Fabric") -> bool:
    """Show a text as it is sampled, and what it took; return False if the model is none of language."""
    from tauflow.recipes import Language, pretrained
    from tauflow.recipes.generation import generate

    trained = pretrained(arguments.pretrained, arguments.dtype, fabric.device, arguments.rates)
    task = trained.task
    if not isinstance(task, Language):
        return False
    facts = f"{type(task).__name__}, {trained.model.process.name} source"
    print(f"pretrained  {arguments.pretrained}  ({facts})", flush=True)
    count = 1 if arguments.num_samples is None else arguments.num_samples
    if count < 1:
        raise SettingsError(f"--num_samples must be at least 1, got {count}")
    asked = task.chat(arguments.prompt) if arguments.chat else arguments.prompt
    (weight,) = weights(arguments.guidance) or [1.0]
    (nfe,), (spec,) = numbers(arguments.nfe, "--nfe"), split_specs(arguments.sampler)
    sampler = sampler_from(spec, trained.model)
    print(f"sampler     {sampler}", flush=True)
    with _live(asked, task, not arguments.no_progress) as observer, fabric.autocast():
        found = generate(
            trained,
            [asked] * count,
            arguments.max_new_tokens,
            sampler,
            nfe,
            block=arguments.block,
            guidance=weight,
            temperature=arguments.temperature,
            seed=arguments.seed,
            observer=observer,
        )
    for number, text in enumerate(found.texts, start=1):
        print(f"\n[{number}] {printable(text)}" if count > 1 else f"\n{printable(text)}")
    print(f"\nevaluations {found.evaluations}  ({found.forwards} forwards)")
    tokens = ", ".join(map(str, found.lengths))
    print(f"new tokens  {tokens}  ({found.tokens_per_evaluation:.2f} for each evaluation)")
    return True


@contextmanager
def _live(prompt: str, task: "Language", wanted: bool) -> "Iterator[Observer | None]":
    """Yield what shows texts as they are denoised; nothing where there is no terminal."""
    from rich.console import Console
    from rich.live import Live

    if not wanted or not sys.stdout.isatty():
        yield None
        return
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        yield lambda step: live.update(view(step, prompt, task), refresh=True)


def view(step: "Step", prompt: str, task: "Language") -> "Text":
    """Return the prompt and the texts as they are now; each token that is not there yet is a light block."""
    from rich.text import Text

    shown = Text()
    for row in step.tokens.tolist():
        shown.append(printable(prompt), "dim")
        for known, part in groupby(row, lambda token: 0 <= token < task.num_tokens):
            tokens = list(part)
            shown.append(printable(task.text.decode(tokens)) if known else HIDDEN * len(tokens))
        shown.append("\n\n")
    shown.append(f"block {step.block + 1} of {step.blocks}", "dim")
    return shown


def printable(text: str) -> str:
    """Return a text with pictures of control characters, which would command a terminal."""
    from tauflow.tasks.text.task import PICTURES

    return text.translate(PICTURES)
