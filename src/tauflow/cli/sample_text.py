"""Text of a pretrained language model in `python sample.py`: one sampler, one budget, and a live view.

Shapes: B samples, N new tokens.
"""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, cast

from tauflow.errors import SettingsError
from tauflow.samplers import SETS, sampler_from, split_specs
from tauflow.samplers.run import make_generator, positive_int

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from rich.console import Console
    from rich.text import Text

    from tauflow.cli.sample import SampleSettings
    from tauflow.recipes.generate import Generated, Observer, Step
    from tauflow.recipes.language import Language
    from tauflow.train import Trained

BATCH_SIZE = 16
PROMPT_LINES = 2  # lines of the prompt in the live view
HIDDEN = "░"  # a token that isn't there yet
TEXT_FLAGS = ("max_new_tokens", "block", "chat")
TABLE_FLAGS = (
    *("out", "tensorboard", "judge", "show", "nll_items", "devices"),
    *("length", "condition", "unconditional"),
)
"""Flags of tables of samplers and budgets."""


def asks_for_text(settings: "SampleSettings") -> bool:
    """Return whether the flags ask a pretrained model for one text and no table; raise for a mix of both."""
    defaults = type(settings)()
    own = [name for name in TEXT_FLAGS if getattr(settings, name) != getattr(defaults, name)]
    if not settings.pretrained or settings.prompt is None:
        if own:
            raise SettingsError(f"--{own[0]} is for texts: --pretrained NAME --prompt TEXT. Remove it.")
        return False
    specs = split_specs(settings.sampler)
    table = [name for name in TABLE_FLAGS if getattr(settings, name) != getattr(defaults, name)]
    if len(specs) != 1 or specs[0].lower() in SETS:
        table.append("sampler")
    table += [name for name in ("nfe", "guidance") if len(getattr(settings, name)) > 1]
    if own and table:
        raise SettingsError(
            f"--{own[0]} asks for one text, --{table[0]} for a table of samplers and budgets. Remove one of "
            "them."
        )
    if not table:
        _check_early(settings, specs[0])
    return not table


def _check_early(settings: "SampleSettings", spec: str) -> None:
    """Raise for what no model can do, before one is loaded."""
    from tauflow.denoise.guidance import check_weight
    from tauflow.denoise.processors import check_temperature
    from tauflow.recipes.generate import check_blocks

    for name in ("num_samples", "batch_size", "max_new_tokens", "block"):
        if getattr(settings, name) is not None:
            positive_int(getattr(settings, name), f"--{name}")
    if spec.lower() != "auto":
        sampler_from(spec)
    check_weight(*settings.guidance or [1.0])
    check_temperature(settings.temperature)
    new = settings.max_new_tokens or settings.block or 1
    check_blocks(new, settings.block or new, settings.nfe[0])


def generate_text(settings: "SampleSettings", trained: "Trained", fabric: "Fabric") -> None:
    """Print texts as they are sampled, batch by batch, and their cost."""
    from tauflow.recipes.generate import generate

    task = cast("Language", trained.task)
    sampler = sampler_from(split_specs(settings.sampler)[0], trained.model)
    facts = f"{type(task).__name__}, {trained.model.process.name} source"
    print(f"pretrained  {settings.pretrained}  ({facts})", flush=True)
    print(f"sampler     {sampler}{'  (sharpens)' if sampler.sharpens else ''}", flush=True)
    if settings.top_k is not None or settings.top_p is not None:
        model = trained.model.truncated(settings.top_k, settings.top_p)
        trained = dataclasses.replace(trained, model=model)
    prompt = cast(str, settings.prompt)
    asked = task.chat(prompt) if settings.chat else prompt
    count = settings.num_samples or 1
    together = settings.batch_size or BATCH_SIZE
    generator = make_generator(settings.seed)
    parts: list[Generated] = []
    for first in range(0, count, together):
        size = min(together, count - first)
        of_all = f"samples {first + 1} to {first + size} of {count}, " if count > together else ""
        live = _live(of_all, asked, task, not settings.no_progress)
        with live as observer, fabric.autocast():
            part = generate(
                trained,
                [asked] * size,
                settings.max_new_tokens,
                sampler,
                settings.nfe[0],
                block=settings.block,
                guidance=settings.guidance[0] if settings.guidance else 1.0,
                temperature=settings.temperature,
                seed=generator,
                observer=observer,
            )
        for number, text in enumerate(part.texts, start=first + 1):
            shown = show_controls(text if settings.chat else asked + text)
            print(f"\n[{number}] {shown}" if count > 1 else f"\n{shown}", flush=True)
        parts.append(part)
    lengths = [length for part in parts for length in part.lengths]
    speed = sum(lengths) / sum(taken for part in parts for taken in part.taken)
    evaluations = sum(part.evaluations for part in parts)
    print(f"\nevaluations {evaluations}  ({sum(part.forwards for part in parts)} forward passes)")
    print(f"new tokens  {', '.join(map(str, lengths))}  ({speed:.2f} per sample and evaluation)")


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
        yield lambda step: live.update(render(step, about, prompt, task, console), refresh=True)


def render(step: "Step", about: str, prompt: str, task: "Language", console: "Console") -> "Text":
    """Return the texts as they are now, each up to its end, on no more lines than a terminal has.

    Each token that is not there yet is a light block. Of a text too long for its share of the lines, those up
    to the block that is sampled are shown.
    """
    from rich.text import Text

    rows = step.tokens[: max(1, (console.height - 2) // 2)]
    lines = max(1, (console.height - 2) // len(rows) - 1)  # for each text, which a blank one follows
    reached = (step.block + 1) * step.tokens.shape[1] // step.blocks  # the end of the block
    begin = "".join(show_controls(prompt).splitlines(keepends=True)[-PROMPT_LINES:])[
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
        text += show_controls(task.text.decode(tokens)) if known else HIDDEN * len(tokens)
    return text


def show_controls(text: str) -> str:
    """Return a text with visible symbols for control characters, which would command a terminal."""
    from tauflow.tasks.task import CONTROL_PICTURES

    return text.translate(CONTROL_PICTURES)
