"""Text of a pretrained language model in `python sample.py`: one sampler, one budget, and a live view.

Shapes: B samples, N new tokens.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from tauflow.cli.sample_values import numbers, weights
from tauflow.errors import SettingsError
from tauflow.samplers import SETS, sampler_from, split_specs
from tauflow.samplers.run import seeded, whole

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from rich.console import Console
    from rich.text import Text

    from tauflow.recipes.generate import Generated, Observer, Step
    from tauflow.recipes.language import Language
    from tauflow.train import Trained

TOGETHER = 16  # samples of a batch
PROMPT_LINES = 2  # of a prompt that the live view shows
HIDDEN = "░"  # what a token that is not there yet is shown as
OWN = ("max_new_tokens", "block", "chat")
TABLES = (
    *("out", "tensorboard", "judge", "show", "nll_items", "devices"),
    *("length", "condition", "unconditional"),
)
"""Arguments that are about tables of samplers and budgets, besides several of these."""


def add_text_arguments(group: Any) -> None:
    """Add the arguments of a text that is generated."""
    group.add_argument(
        "--max_new_tokens",
        type=int,
        metavar="N",
        help="tokens after --prompt, of a language model (default a block of the model, or 128; of "
        "antibodies the rest of a chain)",
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
    if not tables:
        _refuse_early(arguments)
    return not tables


def _refuse_early(arguments: argparse.Namespace) -> None:
    """Refuse what no model can do, before one is loaded."""
    from tauflow.denoise.denoiser import checked_temperature, checked_weight
    from tauflow.recipes.generate import check_blocks

    for name in ("num_samples", "batch_size", *OWN[:2]):
        if getattr(arguments, name) is not None:
            whole(getattr(arguments, name), f"--{name}")
    spec, nfe, weight = _asked(arguments)
    if spec.lower() != "auto":
        sampler_from(spec)
    checked_weight(weight)
    checked_temperature(arguments.temperature)
    new = arguments.max_new_tokens or arguments.block or 1
    check_blocks(new, arguments.block or new, nfe)


def _asked(arguments: argparse.Namespace) -> tuple[str, int, float]:
    """Return the sampler, the budget and the weight of guidance."""
    (spec,), (nfe,) = split_specs(arguments.sampler), numbers(arguments.nfe, "--nfe")
    (weight,) = weights(arguments.guidance) or [1.0]
    return spec, nfe, weight


def writes_text(trained: "Trained") -> bool:
    """Return whether a pretrained model is one of language."""
    from tauflow.recipes import Language

    return isinstance(trained.task, Language)


def generate_text(arguments: argparse.Namespace, trained: "Trained", fabric: "Fabric") -> None:
    """Show texts as they are sampled, batch by batch, and what they took."""
    from tauflow.recipes.generate import generate

    task = cast("Language", trained.task)
    spec, nfe, weight = _asked(arguments)
    sampler = sampler_from(spec, trained.model)
    facts = f"{type(task).__name__}, {trained.model.process.name} source"
    print(f"pretrained  {arguments.pretrained}  ({facts})", flush=True)
    print(f"sampler     {sampler}{'  (sharpens)' if sampler.sharpens else ''}", flush=True)
    if arguments.top_k is not None or arguments.top_p is not None:
        model = trained.model.truncated(arguments.top_k, arguments.top_p)
        trained = dataclasses.replace(trained, model=model)
    asked = task.chat(arguments.prompt) if arguments.chat else arguments.prompt
    count, together = arguments.num_samples or 1, arguments.batch_size or TOGETHER
    generator = seeded(arguments.seed)
    parts: list[Generated] = []
    for first in range(0, count, together):
        size = min(together, count - first)
        of_all = f"samples {first + 1} to {first + size} of {count}, " if count > together else ""
        live = _live(of_all, asked, task, not arguments.no_progress)
        with live as observer, fabric.autocast():
            found = generate(
                trained,
                [asked] * size,
                arguments.max_new_tokens,
                sampler,
                nfe,
                block=arguments.block,
                guidance=weight,
                temperature=arguments.temperature,
                seed=generator,
                observer=observer,
            )
        for number, text in enumerate(found.texts, start=first + 1):
            shown = printable(text if arguments.chat else asked + text)
            print(f"\n[{number}] {shown}" if count > 1 else f"\n{shown}", flush=True)
        parts.append(found)
    _print_cost(parts)


def _print_cost(parts: "list[Generated]") -> None:
    """Print what batches took together."""
    lengths = [length for part in parts for length in part.lengths]
    speed = sum(lengths) / sum(taken for part in parts for taken in part.taken)
    evaluations, forwards = (
        sum(getattr(each, name) for each in parts) for name in ("evaluations", "forwards")
    )
    print(f"\nevaluations {evaluations}  ({forwards} forwards)")
    print(f"new tokens  {', '.join(map(str, lengths))}  ({speed:.2f} of a sample for each evaluation)")


@contextmanager
def _live(about: str, prompt: str, task: "Language", wanted: bool) -> "Iterator[Observer | None]":
    """Yield what shows texts as they are denoised; nothing where there is no terminal."""
    from rich.console import Console
    from rich.live import Live

    if not wanted or not sys.stdout.isatty():
        yield None
        return
    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda step: live.update(view(step, about, prompt, task, console), refresh=True)


def view(step: "Step", about: str, prompt: str, task: "Language", console: "Console") -> "Text":
    """Return the texts as they are now, each up to its end, on no more lines than a terminal has.

    Each token that is not there yet is a light block. Of a text too long for its share of the lines, those up
    to the block that is sampled are shown.
    """
    from rich.text import Text

    rows = step.tokens[: max(1, (console.height - 2) // 2)]
    lines = max(1, (console.height - 2) // len(rows) - 1)  # for each text, which a blank one follows
    reached = (step.block + 1) * step.tokens.shape[1] // step.blocks  # the end of the block
    begin = "".join(printable(prompt).splitlines(keepends=True)[-PROMPT_LINES:])[
        -PROMPT_LINES * console.width :
    ]
    more = f", {len(rows)} of {len(step.tokens)} texts" if len(rows) < len(step.tokens) else ""
    shown = [Text(f"{about}block {step.block + 1} of {step.blocks}{more}", "dim")]
    for row, end in zip(rows.tolist(), task.lengths(rows).tolist(), strict=True):
        text, known = (
            Text.assemble((begin, "dim"), _so_far(row[:last], task)).wrap(console, console.width)
            for last in (end, min(end, reached))
        )
        first = max(0, len(known) - lines)
        shown += [*text[first : first + lines], Text()]
    return Text("\n").join(shown)


def _so_far(row: list[int], task: "Language") -> str:
    """Return a text of which tokens may be missing."""
    text = ""
    for known, part in groupby(row, lambda token: 0 <= token < task.num_tokens):
        tokens = list(part)
        text += printable(task.text.decode(tokens)) if known else HIDDEN * len(tokens)
    return text


def printable(text: str) -> str:
    """Return a text with pictures of control characters, which would command a terminal."""
    from tauflow.tasks.task import CONTROL_PICTURES

    return text.translate(CONTROL_PICTURES)
