"""`python sample.py`: sample from a checkpoint or a pretrained model, measure the samples, print tables.

This file reads from top to bottom: the settings with one field per flag, the parser made from these fields,
the model, what is known of its samples, the grid of samplers and budgets, and the command itself.
`sample_text.py` prints texts of pretrained language models.
"""

import argparse
import dataclasses
import hashlib
import logging
import shlex
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast, get_args, get_origin, get_type_hints

from tauflow.cli.messages import exit_with_message, suggest
from tauflow.errors import CheckpointError, SettingsError, program

if TYPE_CHECKING:
    import torch
    from lightning.fabric import Fabric
    from torch import Tensor

    from tauflow.evaluation.evaluate import SamplerGrid
    from tauflow.evaluation.results import Results
    from tauflow.samplers import Prompt
    from tauflow.samplers.reveal import OrderName
    from tauflow.tasks import Task
    from tauflow.train import Trained

ROOT = Path(__file__).parents[3]  # of the repository
BARELY_TRAINED = 200  # steps
SHIPPED_OF = {"Countdown": "countdown", "Images": "fashion", "Molecules": "molecules", "Scenes": "scenes"}
"""The shipped model of a task."""
IMAGES = Path("samples")  # folder of images without --out
TRIES = 100  # to read a checkpoint that a run replaces all the time
REPLACED = "{} was replaced each time it was read. Copy it and sample from the copy."


# Settings


def flag(help: str, metavar: str | None = None, default: Any = None, **options: Any) -> Any:
    """Return a field of `SampleSettings` that is a flag; `options` are those of argparse."""
    metadata = {"help": help, **options}
    if metavar:
        metadata["metavar"] = metavar
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


class TextFlag(str):
    """Valid Unicode, which may be empty. Python keeps other bytes of a command line as surrogates."""

    def __new__(cls, word: str) -> "TextFlag":
        try:
            word.encode()
        except UnicodeEncodeError:
            raise argparse.ArgumentTypeError(f"{word!a} isn't valid Unicode. Write it in UTF-8.") from None
        return super().__new__(cls, word)


@dataclass(frozen=True)
class SampleSettings:
    """The flags of sample.py: names, types, defaults, and help."""

    ckpt: Path | None = flag(
        "checkpoint, folder of a run, exported folder, or user/name on the Hugging Face Hub; by default the "
        "newest run, or a shipped model",
        "PATH",
    )
    task: str | None = flag("shipped model of a task: countdown, fashion, scenes, molecules", "NAME")
    pretrained: str | None = flag(
        "model that others trained: its folder, or its name on the Hugging Face hub (docs/pretrained.md)",
        "NAME",
    )
    dtype: str | None = flag("type of the weights of --pretrained, such as bfloat16", "NAME")
    rates: str | None = flag("how a model on a metric path is sampled: metric (default) or mixture", "NAME")
    classes: list[str] = flag(
        "your own classes that the checkpoint may use: module.Class or file.py:Class", "NAME", []
    )
    data: list[str] = flag(
        "setting of the task that isn't stored in the checkpoint, such as files=corpus.txt; repeatable",
        "KEY=VALUE",
        [],
    )
    judge: str | None = flag(
        "further metrics. Text: ngram, smollm2, or a Transformers causal LM. Antibodies: sapiens. "
        "Text-to-image: a CLIP model. Molecules: fcd, diversity, moses",
        "NAMES",
    )
    sampler: list[str] = flag("samplers, or sets of them (--help samplers)", "SPEC", ["auto"])
    nfe: list[int] = flag("budgets of network evaluations", "N", [32])
    num_samples: int | None = flag(
        "samples per cell (default 64; 40 for images; 1 for text of a pretrained model)", "N"
    )
    batch_size: int | None = flag("samples drawn together (default 16; 40 for images)", "N")
    nll_items: int = flag(
        "validation items whose likelihood is measured with each sampler; 0 for none", "N", 16
    )
    seed: int = flag("seed of all random draws, 0 to 2**32 - 1", "N", 0)

    prompt: TextFlag | None = flag('known start of every sample; for countdown "31 30 _ 28"', "TEXT")
    infill: TextFlag | None = flag('text with blanks, one _ per token: "We the ____ of"', "TEXT")
    length: int | None = flag(
        "tokens per sample, for tasks of varying length and pretrained language models", "N"
    )
    complete: Path | None = flag("image to complete; --keep selects the known part", "PATH")
    keep: str | None = flag("known part of --complete: left, right, top, bottom, or x0,y0,x1,y1", "PART")
    condition: TextFlag | None = flag("condition of all samples, in the task's words", "TEXT")
    guidance: list[float] = flag(
        "guidance weights, toward the condition, or toward --prompt for models without one; 1 is off", "W", []
    )
    unconditional: Path | None = flag("model to guide away from, as in --ckpt", "PATH")
    temperature: float = flag("divides the logits", "T", 1.0)
    top_k: int | None = flag("draw from the K most likely tokens (default all)", "K")
    top_p: float | None = flag("draw from the most likely tokens that have probability P together", "P")
    learn_order: bool = flag("first learn an order for learned_order, and save it", default=False)
    learn_influence: bool = flag("first learn influences for independent, and save them", default=False)
    learn_counts: "Literal['all'] | OrderName | None" = flag(
        "first learn counts along this order (default all orders), and save them: auto uses the best",
        nargs="?",
        const="all",
    )
    max_new_tokens: int | None = flag(
        "tokens after --prompt, for a language model (default one block of the model, or 128; the rest of "
        "the chain for antibodies)",
        "N",
    )
    block: int | None = flag("tokens sampled together, one block after the other", "K")
    chat: bool = flag("--prompt is a message that the model answers", default=False)

    out: Path | None = flag(
        "write tables, a plot, and all samples there. The same command resumes an unfinished folder. Without "
        "it only images are written, to the folder samples",
        "DIR",
        short="-o",
    )
    show: int | None = flag(
        "samples to print if there is a single cell, and of each cell in samples.txt (default 4; 40 for "
        "images)",
        "N",
    )
    tensorboard: bool = flag("also write the results next to the run, for TensorBoard", default=False)
    no_progress: bool = flag("no progress bar", default=False)

    device: str | None = flag("one device: cpu, cuda, cuda:1, mps", "NAME")
    accelerator: str = flag("kind of device: auto, cpu, cuda, mps", "NAME", "auto")
    devices: int = flag("share the samples among N devices", "N", 1)
    strategy: str = flag("how devices share the work, such as ddp", "NAME", "auto")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = flag(
        "precision of the network: 32-true, bf16-mixed, or 16-mixed", "NAME", "32-true"
    )


GROUPS = {
    "results": ("out", "show", "tensorboard", "no_progress"),
    "where to compute": ("device", "accelerator", "devices", "strategy", "precision"),
}
"""Headings of the help; all other flags are "what to sample"."""

RENAMED = {"guidance_weight": "--guidance W; the checkpoint to guide away from is --unconditional PATH"}
"""Flags of earlier versions, and what to use instead."""


# Parser


def parse_flags(words: Sequence[str]) -> SampleSettings:
    """Return the settings of a command line; exit with a line if it isn't valid."""
    namespace, unknown = build_parser().parse_known_args(words)
    settings = SampleSettings(**vars(namespace))
    if unknown:
        sys.exit(f"error: {_explain_unknown(unknown, settings.sampler)}")
    return settings


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one flag per field of `SampleSettings`; flags that aren't given stay unset."""
    from tauflow.samplers.reveal import OrderName

    parser = _Parser(program("sample").removeprefix("python "), allow_abbrev=False)
    titles = {name: title for title, names in GROUPS.items() for name in names}
    groups = {title: parser.add_argument_group(title) for title in ("what to sample", *GROUPS)}
    hints = get_type_hints(SampleSettings, localns={"OrderName": OrderName})
    for each in dataclasses.fields(SampleSettings):
        options = dict(each.metadata)
        names = [f"--{each.name}", *([options.pop("short")] if "short" in options else [])]
        options["help"] = flag_help(each)
        group = groups[titles.get(each.name, "what to sample")]
        group.add_argument(*names, default=argparse.SUPPRESS, **options, **_action(hints[each.name]))
    return parser


def flag_help(each: dataclasses.Field) -> str:
    """Return the help of a flag, with its default."""
    text = each.metadata["help"]
    default = each.default_factory() if callable(each.default_factory) else each.default
    if default is None or default is False or default == []:
        return text
    shown = default[0] if isinstance(default, list) else default
    return f"{text} (default {shown:g})" if isinstance(shown, float) else f"{text} (default {shown})"


def _action(hint: Any) -> dict[str, Any]:
    """Return how argparse reads a value of a type."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    if hint is bool:
        return {"action": "store_true"}
    if get_origin(hint) is list:
        return {"nargs": "+", "action": _Extend, "type": READERS[hint]}
    if get_origin(hint) is Literal or get_origin(kinds[0]) is Literal:
        literals = [hint] if get_origin(hint) is Literal else kinds
        return {"choices": [choice for each in literals for choice in get_args(each)]}
    return {"type": READERS[kinds[0]]}


def _read_word(word: str) -> str:
    if not word.strip():
        raise argparse.ArgumentTypeError("the value is empty. Pass one, or remove the flag.")
    return word


def _read_path(word: str) -> Path:
    return Path(_read_word(word))


def _read_budgets(word: str) -> list[int]:
    try:
        return [int(part) for part in _split_commas(word)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"budgets must be whole numbers such as 8 16 32, got {word!r}."
        ) from None


def _read_weights(word: str) -> list[float]:
    try:
        return [float(part) for part in _split_commas(word)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"weights must be numbers such as 1 2 4, got {word!r}. The checkpoint to guide away from is "
            "--unconditional PATH."
        ) from None


def _split_commas(word: str) -> list[str]:
    return [part for part in _read_word(word).split(",") if part.strip()]


READERS: dict[Any, Any] = {
    **{int: int, float: float, str: _read_word, Path: _read_path, TextFlag: TextFlag},
    **{list[int]: _read_budgets, list[float]: _read_weights, list[str]: lambda word: [_read_word(word)]},
}
"""How a word of the command line becomes a value, by the type of the field."""


class _Extend(argparse.Action):
    """Adds to what earlier words, and an earlier flag of the same name, gave."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        found = [*getattr(namespace, self.dest, []), *chain.from_iterable(values)]
        if not found:
            parser.error(f"argument {option}: the list is empty. Pass a value, or remove the flag.")
        setattr(namespace, self.dest, found)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; write FLAG=VALUE for a value that starts with a dash"
        self.exit(2, f"error: {message}\n")


def _explain_unknown(unknown: Sequence[str], specs: Sequence[str]) -> str:
    """Return what an unknown flag should be; `specs` are the samplers asked for."""
    word, _, value = unknown[0].partition("=")
    name = word.lstrip("-")
    if name in RENAMED:
        return f"Unknown argument {word}. It's now {RENAMED[name]}."
    from tauflow.samplers import split_specs
    from tauflow.samplers.registry import described

    options = described()
    if name not in options:
        names = [each.name for each in dataclasses.fields(SampleSettings)]
        return f"Unknown argument {word}.{suggest(name, names, '--')} See {program('sample')} --help."
    if not value and len(unknown) > 1 and not unknown[1].startswith("-"):
        value = unknown[1]
    owners = dict(options[name])
    asked = [spec.split("(")[0].strip() for spec in split_specs(specs)]
    owner = next((sampler for sampler in asked if sampler in owners), next(iter(owners)))
    first = owners[owner].choices.split(", ")[0]
    examples = {"true or false": "true", "number": "0.5", "whole number": "1"}
    example = next((example for words, example in examples.items() if first.startswith(words)), first)
    return f"{name} is a sampler option. Write --sampler '{owner}({name}={value or example})'."


# Which flags go together


def check_flags(settings: SampleSettings) -> None:
    """Raise for flags that contradict each other, before anything is read."""
    ours = ("ckpt", "task", "classes", "data", "learn_order", "learn_influence", "learn_counts")
    exclusive = (("prompt", "infill"), ("prompt", "complete"), ("infill", "complete"), ("task", "ckpt"))
    for one, other in exclusive:
        if getattr(settings, one) is not None and getattr(settings, other) is not None:
            raise SettingsError(f"Pass --{one} or --{other}, not both.")
    if bool(settings.complete) != bool(settings.keep):
        raise SettingsError("--complete PATH, an image, needs --keep, its known part, such as left.")
    if settings.complete and settings.guidance and not (settings.condition or settings.unconditional):
        raise SettingsError("--guidance with --complete needs --condition, the class to guide toward.")
    if settings.unconditional and not settings.guidance:
        raise SettingsError("--unconditional needs --guidance W. Start with 2.")
    if settings.dtype and not settings.pretrained:
        raise SettingsError("--dtype is for the weights of --pretrained. For a checkpoint use --precision.")
    for name in ours if settings.pretrained else ():
        if getattr(settings, name):
            raise SettingsError(f"--{name} is for tauflow checkpoints. Remove it, or remove --pretrained.")


# Model


def find_checkpoint(settings: SampleSettings) -> Path:
    """Return the checkpoint to sample: that of --ckpt, the first shipped one of a task, or the newest."""
    from tauflow.train import checkpoint

    if settings.pretrained:
        return Path(settings.pretrained)
    if settings.ckpt:
        return checkpoint.find_checkpoint(settings.ckpt)
    if not settings.task:
        return find_newest_checkpoint()
    shipped = checkpoint.find_shipped(settings.task)
    if shipped is None:
        names = ", ".join(sorted(path.stem for path in checkpoint.SHIPPED.glob("*.ckpt")))
        known = f"Shipped models: {names}." if names else checkpoint.WHERE_SHIPPED
        raise SettingsError(f"--task: no shipped model {settings.task!r}. {known}")
    return shipped


def find_newest_checkpoint() -> Path:
    """Return the best checkpoint of the newest run under checkpoints/; a shipped one if there is none."""
    from tauflow.train.checkpoint import SHIPPED, WHERE_SHIPPED

    for folder in (Path("checkpoints"), ROOT / "checkpoints"):
        found = [path for path in folder.rglob("*.ckpt") if path.parent.resolve() != SHIPPED]
        if found:
            newest = max(found, key=lambda path: path.stat().st_mtime)
            best = newest.with_name("best.ckpt")
            return best if best.exists() else newest
    shipped = SHIPPED / "countdown_masked.ckpt"
    if shipped.exists():
        return shipped
    raise CheckpointError(
        f"No checkpoint found under checkpoints/. Train a model first with `{program('train')}`, or pass "
        f"--ckpt PATH. {WHERE_SHIPPED}"
    )


def load_checkpoint(path: Path, settings: SampleSettings, device: "torch.device") -> tuple["Trained", str]:
    """Load a checkpoint; return it with the SHA-256 of the file, which a run may replace meanwhile."""
    from tauflow.files import digest
    from tauflow.imports import import_object
    from tauflow.tasks.task import parse_settings
    from tauflow.train import load

    classes = [import_object(name, object) for name in settings.classes]
    data = parse_settings(settings.data)
    for _ in range(TRIES):
        before = digest(path) if path.is_file() else ""
        trained = load(path, device, classes, data)
        if digest(path) == before:
            return trained, before
    raise CheckpointError(REPLACED.format(path))


def load_pretrained(settings: SampleSettings, device: "torch.device") -> "Trained":
    from tauflow.recipes import pretrained

    return pretrained(cast(str, settings.pretrained), settings.dtype, device, settings.rates)


def resize(trained: "Trained", settings: SampleSettings) -> "Trained":
    """Return a pretrained model whose samples are as long as --length, or the text of --infill."""
    from tauflow.recipes.language import Language, resized
    from tauflow.tasks.task import index_of

    task = trained.task
    text = settings.infill
    if settings.length is not None:
        return resized(trained, settings.length)
    if text is None or not isinstance(task, Language):
        return trained
    longest = task.sized(task.context or 2 * len(text.encode()))
    return resized(trained, index_of(longest.infill(text)))


def with_rates(trained: "Trained", rates: str) -> "Trained":
    """Return a model on a metric path that is sampled with other rates."""
    from tauflow.process import Metric

    model = trained.model
    if not isinstance(model.process, Metric):
        raise SettingsError(
            f"--rates needs a model on a metric path, this one is {model.process}. Remove --rates."
        )
    return dataclasses.replace(trained, model=model.with_rates(cast(Any, rates)))


def learn(trained: "Trained", path: Path, settings: SampleSettings) -> "Trained":
    """Return the model with what the flags ask to learn of it, which is saved next to the checkpoint."""
    from tauflow.files import check_writable
    from tauflow.samplers import learned

    if not (settings.learn_order or settings.learn_influence or settings.learn_counts):
        return trained
    check_writable(
        path.parent, "What is learned is saved next to the checkpoint: copy it to your own folder first."
    )
    model = trained.model
    if settings.learn_order:
        print("learning an order from how coordinates depend on each other ...", flush=True)
        order = learned.learn_order(model)
        print(f"order       {learned.save_order(path, order)}", flush=True)
        counts = tuple(each for each in model.counts if each.order != "learned")
        if counts != model.counts:  # learned along the previous order
            learned.save_counts(path, counts)
        model = dataclasses.replace(model, order=order, counts=counts)
    if settings.learn_influence:
        print("learning how much coordinates influence each other ...", flush=True)
        influence = learned.learn_influence(model)
        print(f"influence   {learned.save_influence(path, influence)}", flush=True)
        model = dataclasses.replace(model, influence=influence)
    if settings.learn_counts:
        all_orders = settings.learn_counts == "all"
        for name in learned.orders_of(model) if all_orders else [settings.learn_counts]:
            learned.check_order(model, name)
            print(f"learning how many coordinates to reveal along the order {name} ...", flush=True)
            found = learned.learn_counts(model, cast(Any, name))
            others = [each for each in model.counts if each.order != found.order]
            model = dataclasses.replace(model, counts=(*others, found))
            learned.save_counts(path, model.counts)
        print(f"counts      {learned.counts_path(path)}", flush=True)
    return dataclasses.replace(trained, model=model)


# What is known of the samples


def known_tokens(settings: SampleSettings, task: "Task") -> tuple["Prompt | None", "Tensor | None"]:
    """Return what is known of every sample, and which tokens (D, V) it may have; None: all of them."""
    from tauflow.samplers import Prompt
    from tauflow.tasks.task import find_hook

    prompt = None
    if settings.prompt is not None and not _is_condition(settings, task):
        prompt = find_hook(task, "prompt", "--prompt")(settings.prompt)
    elif settings.infill is not None:
        prompt = find_hook(task, "infill", "--infill")(settings.infill)
    elif settings.complete is not None:
        prompt = find_hook(task, "complete", "--complete")(settings.complete, settings.keep)
    length = None if settings.pretrained else settings.length
    if length is None and not hasattr(task, "allowed"):
        return prompt, None
    allowed = find_hook(task, "allowed", "--length")(prompt, length)
    if allowed is None:
        return prompt, None
    known = allowed.sum(1) == 1  # only one token is left
    tokens = allowed.int().argmax(1)
    if prompt is not None:
        tokens = tokens.where(~prompt.known, prompt.tokens)
        known = known | prompt.known
    return Prompt(tokens, known), allowed


def _is_condition(settings: SampleSettings, task: "Task") -> bool:
    """Return whether --prompt is a condition, as for language models with an encoder."""
    if settings.prompt is None or not task.conditions:
        return False
    from tauflow.recipes import Language

    return isinstance(task, Language)


def condition_of(settings: SampleSettings, task: "Task") -> "Tensor | None":
    """Return the condition of all samples; an image to complete has any class by default."""
    import torch

    from tauflow.denoise import DROPPED

    text = settings.condition
    if _is_condition(settings, task):
        if text is not None:
            raise SettingsError(
                "--prompt is the condition of this model. Pass --prompt or --condition, not both."
            )
        text = settings.prompt
    if text is not None:
        return task.condition(text)
    return torch.full((len(task.conditions),), DROPPED) if settings.complete and task.conditions else None


# Grid of samplers and budgets

SIZES = {"num_samples": (64, 40), "batch_size": (16, 40), "show": (4, 40)}
"""Defaults, and those of images: rows of classes need 40."""

DECISIVE = (
    *("num_samples", "batch_size", "seed", "show", "prompt", "infill", "length", "keep", "judge"),
    *("condition", "temperature", "nll_items", "precision"),
)
"""Settings that decide the results: a folder with other ones isn't resumed."""


@dataclass(frozen=True)
class SampleJob:
    """A model, the grid of cells to measure on it, and all that decides the results."""

    path: Path
    trained: "Trained"
    grid: "SamplerGrid"
    recorded: dict[str, Any]

    @property
    def sha256(self) -> str:
        return self.recorded["checkpoint_sha256"]


def prepare_job(
    path: Path, settings: SampleSettings, device: "torch.device", pretrained: "Trained | None" = None
) -> SampleJob:
    """Load the model, unless it's given, and make the grid; raise for what can't be done."""
    from tauflow.evaluation.evaluate import task_of
    from tauflow.evaluation.images import shows_images
    from tauflow.files import digest
    from tauflow.process import Mixture
    from tauflow.train import checkpoint

    if settings.pretrained:
        from tauflow.recipes import RECIPES
        from tauflow.recipes.folders import digest_folder, find_folder

        trained = resize(pretrained or load_pretrained(settings, device), settings)
        sha256 = digest_folder(find_folder(settings.pretrained, RECIPES))
    else:
        trained, sha256 = load_checkpoint(path, settings, device)
        if settings.rates:
            trained = with_rates(trained, settings.rates)
    images = shows_images(task_of(trained))
    sizes: dict[str, Any] = {
        name: sizes[images] for name, sizes in SIZES.items() if getattr(settings, name) is None
    }
    if settings.unconditional:
        sizes["unconditional"] = checkpoint.find_checkpoint(settings.unconditional)
    settings = dataclasses.replace(settings, **sizes)
    trained = learn(trained, path, settings)
    grid = make_grid(settings, trained, device)

    recorded = {name: getattr(settings, name) for name in DECISIVE}
    recorded |= {"step": trained.step, "checkpoint_sha256": sha256}
    for name in ("unconditional", "complete"):
        file = getattr(settings, name)
        recorded[f"{name}_sha256"] = digest(file) if file else None
    process = trained.model.process
    if settings.pretrained or settings.rates or process.name == "metric":
        recorded["rates"] = "mixture" if isinstance(process, Mixture) else process.name
        grid.notes.append(f"sampled with {recorded['rates']} rates")
    recorded |= {"samplers": list(grid.samplers), "nfes": grid.nfes, "guidance": grid.guidance}
    for name in ("dtype", "top_k", "top_p"):
        if getattr(settings, name) is not None:
            recorded[name] = getattr(settings, name)
    order = trained.model.order
    if order is not None:
        recorded["order_sha256"] = hashlib.sha256(order.numpy().tobytes()).hexdigest()
    if trained.model.counts:
        recorded["counts_sha256"] = hashlib.sha256(repr(trained.model.counts).encode()).hexdigest()
    return SampleJob(path, trained, grid, recorded)


def make_grid(settings: SampleSettings, trained: "Trained", device: "torch.device") -> "SamplerGrid":
    from tauflow.evaluation.evaluate import SamplerGrid, Sampling, task_of
    from tauflow.tasks.task import find_hook

    task = task_of(trained)
    if settings.judge:
        find_hook(task, "use_judges", "--judge")(settings.judge, device)
    unconditional = None
    if settings.unconditional:
        other = load_checkpoint(settings.unconditional, settings, device)[0]
        unconditional = (with_rates(other, settings.rates) if settings.rates else other).model
        own, others = (
            (model.process.num_tokens, model.shape, model.process.name)
            for model in (trained.model, unconditional)
        )
        if own != others:
            raise SettingsError(
                f"{settings.unconditional} has another vocabulary, shape or source than the checkpoint. "
                "Guide with a model of the same task."
            )
    prompt, allowed = known_tokens(settings, task)
    if allowed is not None:
        trained = dataclasses.replace(trained, model=trained.model.with_allowed_tokens(allowed))
        unconditional = unconditional and unconditional.with_allowed_tokens(allowed)
    sampling = Sampling(
        cast(int, settings.num_samples),
        cast(int, settings.batch_size),
        settings.seed,
        cast(int, settings.show),
        condition=condition_of(settings, task),
        prompt=prompt,
        temperature=settings.temperature,
        unconditional=unconditional,
        nll_items=settings.nll_items,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )
    return SamplerGrid(trained, choose_samplers(settings), settings.nfe, settings.guidance, sampling)


def choose_samplers(settings: SampleSettings) -> list[str]:
    """Return the samplers asked for; without any, the one that uses what was learned (auto uses counts)."""
    if settings.sampler == ["auto"] and not settings.learn_counts:
        if settings.learn_influence:
            return ["independent"]
        if settings.learn_order:
            return ["learned_order"]
    return settings.sampler


# Command


def sample(argv: list[str] | None = None) -> NoReturn:
    """Run sample.py, with the words of the command line unless `argv` is given."""
    words = sys.argv[1:] if argv is None else argv
    settings = parse_flags(words)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated.*")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    with exit_with_message(f"The same command resumes ({settings.out})" if settings.out else ""):
        from tauflow.distributed import rank

        complete = run(settings, f"{program('sample')} {shlex.join(words)}")
    # Lightning kills the first process, which may still be writing, when another one ends with an error code.
    sys.exit(0 if complete or rank() else 1)


def run(settings: SampleSettings, command: str) -> bool:
    """Print a text, or measure the grid and print its tables; return whether every cell was measured."""
    from tauflow.cli.sample_text import asks_for_text, generate_text
    from tauflow.evaluation.evaluate import GridOptions
    from tauflow.evaluation.figures import FILES, shows_more_than_text
    from tauflow.evaluation.results import lock_samples, open_results

    check_flags(settings)
    wants_text = asks_for_text(settings)
    fabric = make_fabric(settings)
    pretrained = None
    if wants_text:
        from tauflow.recipes import Language

        pretrained = load_pretrained(settings, fabric.device)
        if isinstance(pretrained.task, Language):
            generate_text(settings, pretrained, fabric)
            return True
    job = prepare_job(find_checkpoint(settings), settings, fabric.device, pretrained)
    board = tensorboard_folder(settings, job.path) if settings.tensorboard else None
    fabric.launch()
    job = agree_on_checkpoint(job, settings, fabric)
    with ExitStack() as stack:
        if not settings.out and shows_more_than_text(job.grid.task):
            stack.enter_context(lock_samples(IMAGES))
        grows = ("samplers", "nfes", "guidance")
        results = stack.enter_context(open_results(settings.out, "samples", job.recorded, grows, FILES))
        if command not in results.commands:
            results.commands.append(command)
        if fabric.is_global_zero:
            announce(job, results, settings)
        progress = not settings.no_progress
        options = GridOptions(settings.out, progress, keep_going=True, samples=bool(settings.out))
        with fabric.autocast():
            results = job.grid.run(results, options)
        if fabric.is_global_zero:
            show_results(settings, results, job.grid)
            if board is not None:
                write_tensorboard(board, results, job)
    return not results.problems


def make_fabric(settings: SampleSettings) -> "Fabric":
    from lightning.fabric import Fabric

    accelerator = settings.accelerator
    devices: Any = settings.devices
    asked = f"--devices {devices} --accelerator {accelerator} --strategy {settings.strategy}"
    try:
        if settings.device is not None:
            asked = f"--device {settings.device}"
            accelerator, _, number = settings.device.partition(":")
            devices = [int(number)] if number and accelerator != "cpu" else 1
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            precision=settings.precision,
            strategy=settings.strategy,
        )
    except Exception as error:  # Lightning raises many kinds
        raise SettingsError(f"cannot compute with {asked}: {error}") from None
    if fabric.device.type == "cpu" and settings.precision == "16-mixed":
        raise SettingsError("--precision 16-mixed needs a GPU. On a CPU use bf16-mixed or 32-true.")
    return fabric


def agree_on_checkpoint(job: SampleJob, settings: SampleSettings, fabric: "Fabric") -> SampleJob:
    """Return the job with the same checkpoint on all ranks: a run may have replaced the file meanwhile."""
    from tauflow.distributed import all_reduce_max

    for _ in range(TRIES):
        if not all_reduce_max(job.sha256 != fabric.broadcast(job.sha256)):
            return job
        job = prepare_job(job.path, settings, fabric.device)
    raise CheckpointError(REPLACED.format(job.path))


def tensorboard_folder(settings: SampleSettings, path: Path) -> Path:
    """Return the folder of --tensorboard: next to the run, or in --out if the checkpoint isn't in a run."""
    from tauflow.files import check_writable

    if (path.parent / "config.yaml").exists():
        folder = path.parent / "sampled"
    elif settings.out is not None:
        folder = settings.out / "tensorboard"
    else:
        raise SettingsError(
            f"{path} isn't in the folder of a run. Pass --out DIR, and --tensorboard writes there."
        )
    check_writable(folder, "Copy the run to your own folder, or remove --tensorboard.")
    return folder


def announce(job: SampleJob, results: "Results", settings: SampleSettings) -> None:
    """Print the model, and how much of the grid is there already."""
    task, step = job.grid.task, job.trained.step
    facts = f"{type(task).__name__}, {job.trained.model.process.name} source"
    if settings.pretrained:
        print(f"pretrained  {job.path}  ({facts})", flush=True)
    else:
        print(f"checkpoint  {job.path}  (step {step}, {facts})", flush=True)
        if step < BARELY_TRAINED:
            print(describe_barely_trained(step, task), flush=True)
    if task.guidance is not None and not settings.guidance:
        print(f"guidance    none; --guidance {task.guidance:g} is recommended for this model", flush=True)
    cells = job.grid.cells()
    done = len(cells) - len(results.missing(cells))
    if done:
        print(f"resuming    {done} of {len(cells)} cells are there already", flush=True)


def describe_barely_trained(step: int, task: "Task") -> str:
    """Return that a model is barely trained, and how to sample a shipped one of its task."""
    from tauflow.train.checkpoint import SHIPPED, WHERE_SHIPPED

    said = f"note        trained for {step} steps only: its samples are close to noise"
    name = SHIPPED_OF.get(type(task).__name__)
    if name is None:
        return said
    how = f"a trained model: {program('sample')} --task {name}"
    return f"{said}\n            {how if SHIPPED.is_dir() else WHERE_SHIPPED}"


def show_results(settings: SampleSettings, results: "Results", grid: "SamplerGrid") -> None:
    """Print samples and tables, and write the files of the results."""
    from tauflow.evaluation.figures import sample_files, save_report, shows_more_than_text
    from tauflow.evaluation.images import print_samples
    from tauflow.evaluation.results import replace_samples
    from tauflow.evaluation.samples import write_lines
    from tauflow.evaluation.tables import print_results

    known = grid.sampling.prompt
    if settings.out:
        kept = write_lines(settings.out, results, grid.task)
        names = [*save_report(results, settings.out, grid.task, known), *kept]
    else:
        contents = sample_files(results, grid.task, known)
        names = list(contents)
        if shows_more_than_text(grid.task):
            replace_samples(IMAGES, contents)
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) == 1 and grid.sampling.show:
        print()
        print_samples(cells[0], grid.task, results.title(cells[0].factors))
    print_results(results)
    if names:
        print(f"written to  {settings.out or IMAGES}  ({', '.join(names)})")


def write_tensorboard(folder: Path, results: "Results", job: SampleJob) -> None:
    from tauflow.evaluation.tensorboard import write_grid

    write_grid(results, folder, job.grid.task, job.trained.step)
    in_run = folder.name == "sampled"
    root = folder.parent.parent if in_run else folder
    runs = f"  (the runs {folder.parent.name}/sampled)" if in_run else ""
    print(f"watch it    tensorboard --logdir {root}{runs}")


if __name__ == "__main__":
    from tauflow.cli.commands import run as run_command

    run_command("sample", sys.argv[1:])
