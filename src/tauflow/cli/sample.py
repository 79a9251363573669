"""`python sample.py`: a checkpoint, samplers and budgets in; samples, metrics, tables and a plot out."""

import argparse
import dataclasses
import hashlib
import logging
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tauflow.cli.sample_arguments import numbers, parser, refuse_unknown, weights
from tauflow.errors import CheckpointError, SettingsError, TauflowError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from tauflow.evaluation.evaluate import SamplerGrid
    from tauflow.evaluation.store import Results
    from tauflow.train import Trained

ROOT = Path(__file__).parents[3]


def sample(argv: list[str] | None = None) -> NoReturn:
    """Run sample.py; exit with a message instead of a traceback where the user can fix the cause."""
    argv = sys.argv[1:] if argv is None else argv
    arguments, unknown = parser().parse_known_args(argv)
    arguments.command = shlex.join(["python", "sample.py", *argv])
    refuse_unknown(unknown, arguments.sampler)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated.*")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    try:
        results = _sample(arguments)
    except TauflowError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot read or write a file: {error}")
    except KeyboardInterrupt:
        again = f"; the same command resumes ({arguments.out})" if arguments.out else ""
        print(f"\nstopped{again}", file=sys.stderr)
        sys.exit(130)
    sys.exit(1 if results.problems else 0)


def _sample(arguments: argparse.Namespace) -> "Results":
    from tauflow.evaluation.grid import GridOptions
    from tauflow.evaluation.store import Results
    from tauflow.files import digest
    from tauflow.train import load

    fabric = _fabric(arguments)
    path = arguments.ckpt or newest_checkpoint()
    sha256 = digest(path) if path.is_file() else ""  # before reading: load says what is wrong with a path
    trained = load(path, device=fabric.device, classes=own_classes(arguments.classes))
    if arguments.learn_order:
        trained = _with_learned_order(trained, path)
        if arguments.sampler == ["auto"]:
            arguments.sampler = ["learned_order"]
    board = tensorboard_folder(arguments, path) if arguments.tensorboard else None
    grid = _grid(arguments, trained, fabric)
    settings = _settings(arguments, grid, trained) | {"checkpoint_sha256": sha256}
    results = Results.opened(arguments.out, "samples", settings, grows=("samplers", "nfes", "guidance"))
    if arguments.command not in results.commands:
        results.commands.append(arguments.command)
    fabric.launch()
    if not sha256 == fabric.broadcast(sha256) == digest(path):
        raise CheckpointError(
            f"{path} was replaced while it was read, perhaps by a run that trains; try again"
        )
    if fabric.is_global_zero:
        _announce(path, trained, results, grid)
    options = GridOptions(arguments.out, progress=not arguments.no_progress, keep_going=True)
    with fabric.autocast():
        results = grid.run(results, options)
    if fabric.is_global_zero:
        _show(arguments, results, grid)
        if board is not None:
            _write_tensorboard(board, results, grid, trained.step)
    return results


def tensorboard_folder(arguments: argparse.Namespace, path: Path) -> Path:
    """Return where the results go for TensorBoard: beside the run, or with --out where there is no run."""
    from tauflow.files import refuse_unwritable

    in_run = (path.parent / "config.yaml").exists()
    if not in_run and arguments.out is None:
        raise SettingsError(
            f"{path} does not lie in the folder of a run; give --out DIR, and --tensorboard writes there"
        )
    folder = path.parent / "sampled" if in_run else arguments.out / "tensorboard"
    refuse_unwritable(folder, "copy the run to a folder of your own, or drop --tensorboard")
    return folder


def own_classes(names: list[str]) -> list[type]:
    """Import the user's own classes, named on the command line."""
    from tauflow.imports import import_object

    return [import_object(name, object) for name in names]


def _grid(arguments: argparse.Namespace, trained: "Trained", fabric: "Fabric") -> "SamplerGrid":
    """Return the grid that was asked for; refuse what cannot be done."""
    from tauflow.evaluation.evaluate import SamplerGrid, task_of
    from tauflow.evaluation.measure import Sampling
    from tauflow.train import load

    task = task_of(trained)
    if arguments.judge:
        task.use_judges(arguments.judge, fabric.device)
    if arguments.prompt is not None and arguments.infill is not None:
        raise SettingsError("give --prompt or --infill, not both")
    if arguments.unconditional and not arguments.guidance:
        raise SettingsError(
            "--unconditional needs --guidance W, how much to guide away from it; 2 is a start"
        )
    prompt = None
    if arguments.prompt is not None:
        prompt = task.prompt(arguments.prompt)
    if arguments.infill is not None:
        prompt = task.infill(arguments.infill)
    unconditional = None
    if arguments.unconditional:
        other = load(arguments.unconditional, device=fabric.device, classes=own_classes(arguments.classes))
        unconditional = other.model
        facts = [
            (each.process.num_tokens, each.shape, each.process.name) for each in (trained.model, other.model)
        ]
        if facts[0] != facts[1]:
            raise SettingsError(
                f"{arguments.unconditional} has another vocabulary, shape or source than the checkpoint; "
                "guide with one of the same task"
            )
    sampling = Sampling(
        arguments.num_samples,
        arguments.batch_size,
        arguments.seed,
        arguments.show,
        condition=None if arguments.condition is None else task.condition(arguments.condition),
        prompt=prompt,
        temperature=arguments.temperature,
        unconditional=unconditional,
    )
    nfes, guidance = numbers(arguments.nfe), weights(arguments.guidance)
    return SamplerGrid.of(trained, arguments.sampler, nfes, guidance, sampling)


def _fabric(arguments: argparse.Namespace) -> "Fabric":
    from lightning.fabric import Fabric

    accelerator, devices = arguments.accelerator, arguments.devices
    if arguments.device:
        if arguments.devices != 1 or arguments.accelerator != "auto":
            raise SettingsError(
                "--device names one device; drop --accelerator and --devices, or use them instead"
            )
        accelerator, colon, number = arguments.device.partition(":")
        if colon and not number.isdecimal():
            raise SettingsError(
                f"--device is a name and perhaps a number, such as cuda:1, not {arguments.device}"
            )
        devices = [int(number)] if number and accelerator != "cpu" else 1
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            precision=arguments.precision,
            strategy=arguments.strategy,
        )
    except Exception as error:  # Lightning raises many kinds
        raise SettingsError(
            f"cannot compute on {arguments.device or f'{devices} x {accelerator}'}: {error}"
        ) from None
    if fabric.device.type == "cpu" and arguments.precision == "16-mixed":
        raise SettingsError("--precision 16-mixed needs a GPU; on a CPU take bf16-mixed or 32-true")
    return fabric


def newest_checkpoint() -> Path:
    """Return the best checkpoint of the newest run under checkpoints/; a shipped one where there is none."""
    from tauflow.train.trained import SHIPPED

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


def _with_learned_order(trained: "Trained", path: Path) -> "Trained":
    """Learn an order, seconds on a small model, and keep it as a file beside the checkpoint."""
    from tauflow.files import refuse_unwritable
    from tauflow.theory import orders

    print("learning an order from how coordinates depend on each other ...", flush=True)
    refuse_unwritable(
        path.parent, "the order is kept beside the checkpoint: copy it to a folder of your own first"
    )
    order = orders.learn_order(trained.model)
    print(f"order       {orders.save(path, order)}", flush=True)
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, order=order))


SETTINGS = (
    "num_samples",
    "batch_size",
    "seed",
    "show",
    "prompt",
    "infill",
    "judge",
    "condition",
    "temperature",
    "precision",
)
"""Arguments that decide the results as they are."""


def _settings(arguments: argparse.Namespace, grid: "SamplerGrid", trained: "Trained") -> dict[str, Any]:
    """Return all that decides the results, as plain data; the same on any number of devices."""
    from tauflow.files import digest

    settings = {name: getattr(arguments, name) for name in SETTINGS}
    settings |= {"step": trained.step, "unconditional_sha256": None}
    settings |= {"samplers": list(grid.samplers), "nfes": grid.nfes, "guidance": grid.guidance}
    if arguments.unconditional:
        settings["unconditional_sha256"] = digest(arguments.unconditional)
    order = trained.model.order
    if order is not None:
        settings["order_sha256"] = hashlib.sha256(order.numpy().tobytes()).hexdigest()
    return settings


def _announce(path: Path, trained: "Trained", results: "Results", grid: "SamplerGrid") -> None:
    process = trained.model.process.name
    print(
        f"checkpoint  {path}  (step {trained.step}, {type(trained.task).__name__}, {process} source)",
        flush=True,
    )
    cells = grid.cells()
    done = len(cells) - len(results.missing(cells))
    if done:
        print(f"resuming    {done} of {len(cells)} cells are there already", flush=True)


def _show(arguments: argparse.Namespace, results: "Results", grid: "SamplerGrid") -> None:
    """Show the results, and write them where they were asked for."""
    from tauflow.evaluation.pictures import print_samples
    from tauflow.evaluation.report import save_report
    from tauflow.evaluation.tables import print_results

    names = save_report(results, arguments.out, grid.task) if arguments.out else []
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) == 1 and arguments.show:
        print()
        print_samples(cells[0], results, grid.task)
    print_results(results)
    if names:
        print(f"written to  {arguments.out}  ({', '.join(names)})")


def _write_tensorboard(folder: Path, results: "Results", grid: "SamplerGrid", step: int) -> None:
    from tauflow.evaluation.tensorboard import write_grid

    write_grid(results, folder, grid.task, step)
    root = folder.parent.parent if folder.name == "sampled" else folder
    runs = f"  (the runs {folder.parent.name}/sampled)" if folder.name == "sampled" else ""
    print(f"watch it    tensorboard --logdir {root}{runs}")
