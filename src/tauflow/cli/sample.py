"""`python sample.py`: a checkpoint, samplers and budgets in; samples, metrics, tables and a plot out."""

import argparse
import logging
import os
import shlex
import signal
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tauflow.cli.sample_arguments import parser, refuse_unknown
from tauflow.cli.sample_text import asks_for_text, generate_text, writes_text
from tauflow.errors import SettingsError, TauflowError
from tauflow.stopping import exit_code, stoppable

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from tauflow.cli.sample_request import Request
    from tauflow.evaluation.evaluate import SamplerGrid
    from tauflow.evaluation.results import Results

SAMPLES = Path("samples")  # folder for images without --out


def sample(argv: list[str] | None = None) -> NoReturn:
    """Run sample.py; exit with a message instead of a traceback where the user can fix the cause."""
    argv = sys.argv[1:] if argv is None else argv
    arguments, unknown = parser().parse_known_args(argv)
    arguments.sampler = arguments.sampler or ["auto"]
    arguments.nfe = arguments.nfe or ["32"]
    arguments.command = shlex.join(["python", "sample.py", *argv])
    refuse_unknown(unknown, arguments.sampler)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated.*")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ± shows ? instead
    from tauflow.distributed import is_lost_rank, rank

    try:
        with stoppable():
            complete = _sample(arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # who reads what is printed has read enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is printed at the end
        sys.exit(128 + signal.SIGPIPE)
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        kept = f"The same command resumes ({arguments.out})." if arguments.out else "Sample again."
        sys.exit(f"error: another process died or doesn't answer. {kept}")
    except TauflowError as error:
        sys.exit(1 if rank() else f"error: {error}")  # the ranks that were launched have the same one
    except OSError as error:
        sys.exit(f"error: cannot read or write a file: {error}")
    except KeyboardInterrupt as stop:
        if not rank():
            again = f"; the same command resumes ({arguments.out})" if arguments.out else ""
            print(f"\nstopped{again}", file=sys.stderr)
        sys.exit(exit_code(stop))
    # Lightning kills the first process, which may still be writing, when another one ends with an error code.
    sys.exit(0 if complete or rank() else 1)


def _sample(arguments: argparse.Namespace) -> bool:
    """Show a text, or the table that was asked for; return whether there were no problems."""
    from tauflow.cli.sample_models import loaded_pretrained
    from tauflow.cli.sample_request import checkpoint_of, refuse_unfit, requested, tensorboard_folder
    from tauflow.evaluation.evaluate import GridOptions
    from tauflow.evaluation.figures import FILES, shows_more_than_text
    from tauflow.evaluation.results import lock_samples, open_results

    refuse_unfit(arguments)
    text = asks_for_text(arguments, parser())
    fabric = _fabric(arguments)
    pretrained = loaded_pretrained(arguments, fabric.device) if text else None
    if pretrained is not None and writes_text(pretrained):
        generate_text(arguments, pretrained, fabric)
        return True
    request = requested(checkpoint_of(arguments), arguments, fabric.device, pretrained)
    board = tensorboard_folder(arguments, request.path) if arguments.tensorboard else None
    fabric.launch()
    request = _agreed(request, arguments, fabric)
    grows = ("samplers", "nfes", "guidance")
    with ExitStack() as stack:
        if not arguments.out and shows_more_than_text(request.grid.task):
            stack.enter_context(lock_samples(SAMPLES))
        results = stack.enter_context(open_results(arguments.out, "samples", request.settings, grows, FILES))
        if arguments.command not in results.commands:
            results.commands.append(arguments.command)
        if fabric.is_global_zero:
            _announce(request, results, arguments)
        options = GridOptions(arguments.out, progress=not arguments.no_progress, keep_going=True)
        with fabric.autocast():
            results = request.grid.run(results, options)
        if fabric.is_global_zero:
            _show(arguments, results, request.grid)
            if board is not None:
                _write_tensorboard(board, results, request.grid, request.trained.step)
    return not results.problems


def _agreed(request: "Request", arguments: argparse.Namespace, fabric: "Fabric") -> "Request":
    """Return the request with the same checkpoint on all ranks: a run may have replaced it meanwhile."""
    from tauflow.cli.sample_models import TRIES, replaced
    from tauflow.cli.sample_request import requested
    from tauflow.distributed import all_reduce_max

    for _ in range(TRIES):
        if not all_reduce_max(request.sha256 != fabric.broadcast(request.sha256)):
            return request
        request = requested(request.path, arguments, fabric.device)
    raise replaced(request.path)


def _fabric(arguments: argparse.Namespace) -> "Fabric":
    from lightning.fabric import Fabric

    accelerator, devices = arguments.accelerator, arguments.devices
    asked = f"--devices {devices} --accelerator {accelerator} --strategy {arguments.strategy}"
    if arguments.device is not None:
        asked = f"--device {arguments.device}"
        accelerator, _, number = arguments.device.partition(":")
    try:
        if arguments.device is not None:
            devices = [int(number)] if number and accelerator != "cpu" else 1
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            precision=arguments.precision,
            strategy=arguments.strategy,
        )
    except Exception as error:  # Lightning raises many kinds
        raise SettingsError(f"cannot compute with {asked}: {error}") from None
    if fabric.device.type == "cpu" and arguments.precision == "16-mixed":
        raise SettingsError("--precision 16-mixed needs a GPU; on a CPU take bf16-mixed or 32-true")
    return fabric


def _announce(request: "Request", results: "Results", arguments: argparse.Namespace) -> None:
    trained = request.trained
    task = request.grid.task
    facts = f"{type(task).__name__}, {trained.model.process.name} source"
    if arguments.pretrained:
        print(f"pretrained  {request.path}  ({facts})", flush=True)
    else:
        print(f"checkpoint  {request.path}  (step {trained.step}, {facts})", flush=True)
    if task.guidance is not None and not arguments.guidance:
        print(f"guidance    none; --guidance {task.guidance:g} is recommended for this model", flush=True)
    cells = request.grid.cells()
    done = len(cells) - len(results.missing(cells))
    if done:
        print(f"resuming    {done} of {len(cells)} cells are there already", flush=True)


def _show(arguments: argparse.Namespace, results: "Results", grid: "SamplerGrid") -> None:
    """Show the results, and write them where they were asked for."""
    from tauflow.evaluation.figures import sample_files, save_report, shows_more_than_text
    from tauflow.evaluation.images import print_samples
    from tauflow.evaluation.results import replace_samples
    from tauflow.evaluation.tables import print_results

    given = grid.sampling.prompt
    if arguments.out:
        names = save_report(results, arguments.out, grid.task, given)
    else:
        shown = sample_files(results, grid.task, given)
        names = list(shown)
        if shows_more_than_text(grid.task):
            replace_samples(SAMPLES, shown)
    cells = [cell for cell in results.cells if cell.shown]
    if len(cells) == 1 and arguments.show:
        print()
        print_samples(cells[0], results, grid.task)
    print_results(results)
    if names:
        print(f"written to  {arguments.out or SAMPLES}  ({', '.join(names)})")


def _write_tensorboard(folder: Path, results: "Results", grid: "SamplerGrid", step: int) -> None:
    from tauflow.evaluation.tensorboard import write_grid

    write_grid(results, folder, grid.task, step)
    root = folder.parent.parent if folder.name == "sampled" else folder
    runs = f"  (the runs {folder.parent.name}/sampled)" if folder.name == "sampled" else ""
    print(f"watch it    tensorboard --logdir {root}{runs}")
