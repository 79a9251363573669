"""What `python sample.py` was asked for: the model, the grid of cells, and all that decides the results."""

import argparse
import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tauflow.cli import sample_asked
from tauflow.cli.sample_learned import with_learned
from tauflow.cli.sample_models import digest_of_pretrained, loaded, loaded_pretrained
from tauflow.cli.sample_values import numbers, weights
from tauflow.errors import CheckpointError, SettingsError
from tauflow.files import check_writable, digest

if TYPE_CHECKING:
    import torch

    from tauflow.evaluation.evaluate import SamplerGrid
    from tauflow.process import Process
    from tauflow.train import Trained

ROOT = Path(__file__).parents[3]

SETTINGS = (
    "num_samples",
    "batch_size",
    "seed",
    "show",
    "prompt",
    "infill",
    "length",
    "keep",
    "judge",
    "condition",
    "temperature",
    "nll_items",
    "precision",
)
"""Arguments that decide the results as they are."""

SIZES = {"num_samples": (64, 40), "batch_size": (16, 40), "show": (4, 40)}
"""Defaults for texts, and for pictures, of which a batch is kept: rows of classes need as many."""


@dataclass(frozen=True)
class Request:
    """A checkpoint that was read, the grid on its model, and the settings of the results."""

    path: Path
    trained: "Trained"
    grid: "SamplerGrid"
    settings: dict[str, Any]

    @property
    def sha256(self) -> str:
        return self.settings["checkpoint_sha256"]


def requested(
    path: Path, arguments: argparse.Namespace, device: "torch.device", pretrained: "Trained | None" = None
) -> Request:
    """Read the checkpoint and make the grid that was asked for; refuse what cannot be done.

    A pretrained model may have been loaded already.
    """
    if arguments.pretrained:
        trained = sample_asked.sized(arguments, pretrained or loaded_pretrained(arguments, device))
        sha256 = digest_of_pretrained(arguments)
    else:
        trained, sha256 = loaded(path, arguments, device)
        if arguments.rates:
            trained = _with_rates(trained, arguments.rates)
    _fill_in_sizes(arguments, trained)
    trained = with_learned(trained, path, arguments)
    grid = _grid(arguments, trained, device)
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    settings |= {"step": trained.step, "checkpoint_sha256": sha256}
    for name in ("unconditional", "complete"):
        file = getattr(arguments, name)
        settings[f"{name}_sha256"] = digest(file) if file else None
    if arguments.pretrained or arguments.rates or trained.model.process.name == "metric":
        settings["rates"] = _rates(trained.model.process)
        grid.notes.append(f"sampled with {settings['rates']} rates")
    settings |= {"samplers": list(grid.samplers), "nfes": grid.nfes, "guidance": grid.guidance}
    for name in ("dtype", "top_k", "top_p"):
        if getattr(arguments, name) is not None:
            settings[name] = getattr(arguments, name)
    order = trained.model.order
    if order is not None:
        settings["order_sha256"] = hashlib.sha256(order.numpy().tobytes()).hexdigest()
    if trained.model.counts:
        settings["counts_sha256"] = hashlib.sha256(repr(trained.model.counts).encode()).hexdigest()
    return Request(path, trained, grid, settings)


def _rates(process: "Process") -> str:
    """Return the name of the rates that a process has."""
    from tauflow.process import Mixture

    return "mixture" if isinstance(process, Mixture) else process.name


def _with_rates(trained: "Trained", rates: str) -> "Trained":
    """Return a model on a metric path with other rates; refuse them for any other."""
    from tauflow.process import Metric

    model = trained.model
    if not isinstance(model.process, Metric):
        raise SettingsError(
            f"--rates are of a model on a metric path, which this one ({model.process}) is not; drop --rates"
        )
    return dataclasses.replace(trained, model=model.with_rates(cast(Any, rates)))


def refuse_unfit(arguments: argparse.Namespace) -> None:
    """Refuse flags that say nothing together, before anything is read."""
    known = [name for name in ("prompt", "infill", "complete") if getattr(arguments, name) is not None]
    if len(known) > 1:
        raise SettingsError(f"give --{known[0]} or --{known[1]}, not both")
    if arguments.complete and not arguments.keep:
        raise SettingsError("--complete needs --keep, the part of the picture that is known, such as left")
    if arguments.keep and not arguments.complete:
        raise SettingsError("--keep needs --complete PATH, the picture to complete")
    if arguments.complete and arguments.guidance and not (arguments.condition or arguments.unconditional):
        raise SettingsError(
            "--guidance of a completion needs --condition, what to guide to; its class is open"
        )
    if arguments.task and arguments.ckpt:
        raise SettingsError("give --task, a shipped model, or --ckpt, a checkpoint of your own, not both")
    if arguments.pretrained:
        _refuse_unfit_to_pretrained(arguments)
    elif arguments.dtype:
        raise SettingsError("--dtype is of the weights of --pretrained; for a checkpoint give --precision")
    if arguments.unconditional and not arguments.guidance:
        raise SettingsError(
            "--unconditional needs --guidance W, how much to guide away from it; 2 is a start"
        )


def _refuse_unfit_to_pretrained(arguments: argparse.Namespace) -> None:
    """Refuse flags that are about checkpoints."""
    names = ("ckpt", "task", "classes", "data", "learn_order", "learn_influence", "learn_counts")
    unfit = [name for name in names if getattr(arguments, name)]
    if unfit:
        raise SettingsError(
            f"--{unfit[0]} is about checkpoints of tauflow; drop it, or drop --pretrained, a model that "
            "others have trained"
        )


def _fill_in_sizes(arguments: argparse.Namespace, trained: "Trained") -> None:
    """Give the sizes that the user left open."""
    from tauflow.evaluation.evaluate import task_of
    from tauflow.evaluation.images import shows_images

    pictures = shows_images(task_of(trained))
    for name, defaults in SIZES.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, defaults[pictures])


def checkpoint_of(arguments: argparse.Namespace) -> Path:
    """Return the model that was asked for: by its path or name, by its task, or else the newest."""
    if arguments.pretrained:
        return Path(arguments.pretrained)
    if arguments.task:
        return shipped_checkpoint(arguments.task)
    return arguments.ckpt or newest_checkpoint()


def shipped_checkpoint(name: str) -> Path:
    """Return the shipped checkpoint of a task: the first file that is called NAME, or NAME_ and more."""
    from tauflow.train.checkpoint import SHIPPED

    there = sorted(SHIPPED.glob("*.ckpt"))
    found = [path for path in there if path.stem == name or path.stem.startswith(f"{name}_")]
    if not found:
        names = ", ".join(path.stem for path in there) or f"none, {SHIPPED} is missing"
        raise SettingsError(f"--task: there is no shipped model {name!r}; there are {names}")
    return found[0]


def newest_checkpoint() -> Path:
    """Return the best checkpoint of the newest run under checkpoints/; a shipped one where there is none."""
    from tauflow.train.checkpoint import SHIPPED

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
        "there is no checkpoint under checkpoints/; train one with `python train.py`, or name --ckpt"
    )


def tensorboard_folder(arguments: argparse.Namespace, path: Path) -> Path:
    """Return where the results go for TensorBoard: beside the run, or with --out where there is no run."""
    in_run = (path.parent / "config.yaml").exists()
    if not in_run and arguments.out is None:
        raise SettingsError(
            f"{path} does not lie in the folder of a run; give --out DIR, and --tensorboard writes there"
        )
    folder = path.parent / "sampled" if in_run else arguments.out / "tensorboard"
    check_writable(folder, "copy the run to a folder of your own, or drop --tensorboard")
    return folder


def _grid(arguments: argparse.Namespace, trained: "Trained", device: "torch.device") -> "SamplerGrid":
    from tauflow.evaluation.evaluate import SamplerGrid, Sampling, task_of
    from tauflow.tasks.task import find_hook

    task = task_of(trained)
    if arguments.judge:
        find_hook(task, "use_judges", "--judge")(arguments.judge, device)
    unconditional = None
    if arguments.unconditional:
        unconditional = loaded(arguments.unconditional, arguments, device)[0].model
        if arguments.rates:
            unconditional = unconditional.with_rates(arguments.rates)
        facts = [
            (each.process.num_tokens, each.shape, each.process.name)
            for each in (trained.model, unconditional)
        ]
        if facts[0] != facts[1]:
            raise SettingsError(
                f"{arguments.unconditional} has another vocabulary, shape or source than the checkpoint; "
                "guide with one of the same task"
            )
    prompt, allowed = sample_asked.known(arguments, task)
    if allowed is not None:
        trained = dataclasses.replace(trained, model=trained.model.allowing(allowed))
        unconditional = unconditional and unconditional.allowing(allowed)
    sampling = Sampling(
        arguments.num_samples,
        arguments.batch_size,
        arguments.seed,
        arguments.show,
        condition=sample_asked.condition(arguments, task),
        prompt=prompt,
        temperature=arguments.temperature,
        unconditional=unconditional,
        nll_items=arguments.nll_items,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
    )
    nfes, guidance = numbers(arguments.nfe, "--nfe"), weights(arguments.guidance)
    return SamplerGrid.of(trained, samplers(arguments), nfes, guidance, sampling)


def samplers(arguments: argparse.Namespace) -> list[str]:
    """Return the samplers that were asked for; without any, those that use what is learned.

    With learned counts that is `auto`.
    """
    if arguments.sampler != ["auto"] or arguments.learn_counts:
        return arguments.sampler
    if arguments.learn_influence:
        return ["independent"]
    return ["learned_order"] if arguments.learn_order else arguments.sampler
