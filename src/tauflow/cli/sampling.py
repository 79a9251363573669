"""`python sample.py`: a checkpoint, samplers and budgets in; samples, metrics, tables and a plot out."""

import argparse
import dataclasses
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities import rank_zero_only

from tauflow.errors import CheckpointError, SettingsError, TauflowError
from tauflow.evaluation import OPTIONS, SETS, check, choose_samplers, evaluate
from tauflow.files import digest, refuse_unwritable, write
from tauflow.orders import learn_order
from tauflow.orders import save as save_order
from tauflow.runs import SHIPPED, Run, load
from tauflow.samplers import SAMPLERS, Sampler
from tauflow.tables import Table, plain

ROOT = Path(__file__).parents[3]
RECOMMENDED = {"masked": "spaced_even", "uniform": "bridge_systematic"}  # by source; the evidence is in docs/choosing-a-sampler.md
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")

DESCRIPTION = """Sample from a trained checkpoint and measure the samples.

With no arguments: takes the newest checkpoint under checkpoints/ (the shipped countdown model before any run), samples with the
recommended sampler, shows samples and their metrics.
With several samplers or budgets: evaluates every combination and prints a table for each metric, the best of each budget in bold.

  python sample.py
  python sample.py --ckpt checkpoints/countdown/version_0/best.ckpt --sampler euler --nfe 16
  python sample.py --sampler tr_cie,euler --nfe 8,16,32 --num_samples 256 --out results
  python sample.py --sampler paper --nfe 8,16,32,64 --num_samples 1024 --devices 2 --out results
  python sample.py --prompt "31 30 _ 28" --show 2
  python sample.py --ckpt checkpoints/text_masked/version_0/best.ckpt --prompt "The statement" --temperature 0.8 --judge ngram,smollm2
"""

EPILOG = f"""samplers:  {", ".join(SAMPLERS)}
sets:      {"; ".join(f"{name} = {', '.join(members) if name != 'all' else 'every one'}" for name, members in SETS.items())}

Members of a set that do not support the checkpoint's source are left out, and that is said. docs/samplers.md explains every sampler
and option, docs/monitoring.md the files that --out writes.
"""


def sample(argv: list[str] | None = None) -> NoReturn:
    """Entry point of sample.py; exits with a message instead of a traceback where the user can mend the cause."""
    arguments = parser().parse_args(argv)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated.*")
    sys.stdout.reconfigure(errors="replace")  # a terminal without ± shows ? instead
    try:
        table = _sample(arguments)
    except TauflowError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write the results: {error}; choose another folder with --out")
    except KeyboardInterrupt:
        again = f"; the same command goes on where it stopped ({arguments.out})" if arguments.out else ""
        print(f"\nstopped{again}", file=sys.stderr)
        sys.exit(130)
    sys.exit(1 if table.problems else 0)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "sample.py", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    what = parser.add_argument_group("what to sample")
    what.add_argument(
        "--ckpt", type=Path, metavar="PATH", help="checkpoint of train.py; by default the best of the newest run, or a shipped one"
    )
    best = ", ".join(f"{name} for a {source} source" for source, name in RECOMMENDED.items())
    what.add_argument("--sampler", metavar="NAMES", help=f"names, comma-separated, or a set (default {best})")
    what.add_argument("--nfe", type=_whole_numbers, default=[32], metavar="NUMBERS", help="budgets of network evaluations (default 32)")
    what.add_argument("--num_samples", type=int, default=64, metavar="N", help="samples of each sampler and budget (default 64)")
    what.add_argument("--batch_size", type=int, default=16, metavar="N", help="samples drawn together; devices share batches (default 16)")
    what.add_argument("--seed", type=int, default=0, help="of everything drawn; all samplers begin from the same noise (default 0)")
    what.add_argument("--prompt", metavar="TEXT", help='what every sample begins with: text; for countdown values and _: "31 30 _ 28"')
    what.add_argument("--infill", metavar="TEXT", help='text with blanks of as many _ as tokens may stand there: "We the ____ of the"')
    what.add_argument("--judge", metavar="NAMES", help="of text: ngram, smollm2, a causal model of transformers (default: the run's)")
    what.add_argument(
        "--learn_order", action="store_true", help="first learn an order for --sampler learned_order; kept beside the checkpoint"
    )
    what.add_argument("--temperature", type=float, default=1.0, help="divides the logits (default 1)")
    what.add_argument("--guidance", type=Path, metavar="PATH", help="checkpoint of an unconditional model to guide away from")
    what.add_argument("--guidance_weight", type=float, metavar="W", help="1 is no guidance, more is more (default 2, with --guidance)")
    how = parser.add_argument_group("options of the samplers (default: each sampler's own)")
    how.add_argument("--grid", choices=["t", "tau", "early"], help="where the steps are: equally long in t or in tau, or dense early")
    how.add_argument("--jump", choices=["exponential", "one_event"], help="jump rule of a leap")
    how.add_argument("--cutoff", type=float, metavar="X", help="1 - kappa where the grid ends")
    how.add_argument("--finish", choices=["draw", "reuse", "none"], help="what happens after the last step")
    how.add_argument("--eps_0", type=float, metavar="X", help="floor of an intensity")
    how.add_argument("--ceiling", type=float, metavar="X", help="ceiling of an intensity")
    how.add_argument("--theta", type=float, metavar="X", help="where the second stage of theta methods is")
    how.add_argument("--coins", choices=["independent", "systematic"], help="whether neighbours may move together as often as others")
    how.add_argument("--gain", type=float, metavar="X", help="share of the extrapolation of bridge samplers")
    how.add_argument("--order", choices=["random", "spaced", "even", "learned"], help="in which order reveal samplers go")
    how.add_argument("--counts", choices=["equal", "power", "entropy"], help="how many coordinates an evaluation reveals")
    how.add_argument("--power", type=float, metavar="X", help="exponent of these counts: more reveals fewer at first")
    how.add_argument("--extrapolation", choices=["pairs", "hitting"], help="what weighs the extrapolation of reveal samplers")
    how.add_argument("--weight", type=float, metavar="X", help="the largest weight of pairs")
    how.add_argument("--dense", action="store_true", help="the literal algorithm of samplers that leap, slow, with the same law")
    out = parser.add_argument_group("results")
    out.add_argument(
        *("--out", "-o"),
        type=Path,
        metavar="DIR",
        help="write results.json, .csv, .md, quality_vs_nfe.png and samples.txt there; the same command goes on with an unfinished one",
    )
    out.add_argument("--show", type=int, default=4, metavar="N", help="samples to show of each cell, at most batch_size (default 4)")
    out.add_argument("--no_progress", action="store_true", help="no progress bar")
    where = parser.add_argument_group("where to compute")
    where.add_argument("--device", metavar="NAME", help="one device: cpu, cuda, cuda:1, mps")
    where.add_argument("--accelerator", default="auto", metavar="NAME", help="of Lightning: auto, cpu, cuda, mps (default auto)")
    where.add_argument("--devices", type=int, default=1, metavar="N", help="share the samples over N devices; the samples stay the same")
    where.add_argument("--strategy", default="auto", metavar="NAME", help="of Lightning, for several devices: ddp (default auto)")
    where.add_argument("--precision", default="32-true", choices=PRECISIONS, help="of the network (default 32-true)")
    return parser


def _sample(arguments: argparse.Namespace) -> Table:
    fabric = _fabric(arguments)
    path = arguments.ckpt or newest_checkpoint()
    sha256 = digest(path) if path.is_file() else ""  # before reading: load says what is wrong with a path
    run = load(path, device=fabric.device)
    default = "learned_order" if arguments.learn_order else RECOMMENDED[type(run.source).__name__.lower()]
    arguments.sampler = arguments.sampler or default
    if arguments.learn_order:
        run = _with_learned_order(run, path)
    if arguments.judge:
        run.task.use_judges(arguments.judge, fabric.device)
    options = {name: getattr(arguments, name) for name in (*OPTIONS, "temperature", "dense")} | _conditions(arguments, run, fabric.device)
    if arguments.show < 0:
        raise SettingsError(f"--show is a number of samples, got {arguments.show}")
    samplers, _ = choose_samplers(arguments.sampler, run, **{name: options[name] for name in OPTIONS})
    nfes = check(run, samplers, arguments.nfe, arguments.num_samples, arguments.batch_size, arguments.temperature)
    settings = plain(_settings(arguments, path, run, samplers, nfes) | {"checkpoint_sha256": sha256})
    done = _done(arguments.out, settings) if arguments.out else []
    fabric.launch()
    if not sha256 == fabric.broadcast(sha256) == digest(path):
        raise CheckpointError(f"{path} was replaced while it was read, perhaps by a run that is training; try again, or copy it first")
    say = rank_zero_only(print)
    say(f"checkpoint  {path}  (step {run.step}, {type(run.task).__name__}, {type(run.source).__name__.lower()} source)", flush=True)
    if done:
        say(f"continuing  {arguments.out}, which has {len(done)} of {len(samplers) * len(nfes)} cells")

    def keep(table: Table) -> None:
        if arguments.out and fabric.is_global_zero:
            write(arguments.out / "results.json", table.to_json())  # all that an interrupted grid needs to go on

    with fabric.autocast():
        table = evaluate(
            run,
            arguments.sampler,
            nfes,
            arguments.num_samples,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
            show=arguments.show,
            progress=not arguments.no_progress,
            keep_going=True,
            done=done,
            on_cell=keep,
            settings=settings,
            **options,
        )
    if fabric.is_global_zero:
        if len(table.cells) == 1 and arguments.show:
            print(f"\n{table.samples_text(run.task)}", flush=True)
        table.print()
        if arguments.out:
            table.save(arguments.out, run.task)
            print(f"written to  {arguments.out}  (results.json, results.csv, results.md, quality_vs_nfe.png, samples.txt)")
    return table


def _fabric(arguments: argparse.Namespace) -> Fabric:
    accelerator, devices = arguments.accelerator, arguments.devices
    if arguments.device:
        if arguments.devices != 1 or arguments.accelerator != "auto":
            raise SettingsError("--device names one device; leave --accelerator and --devices out, or use them instead")
        accelerator, colon, number = arguments.device.partition(":")
        if colon and not number.isdecimal():
            raise SettingsError(f"--device is a name and perhaps a number, such as cuda:1, not {arguments.device}")
        devices = [int(number)] if number and accelerator != "cpu" else 1
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, precision=arguments.precision, strategy=arguments.strategy)
    except Exception as error:  # Lightning raises many kinds
        raise SettingsError(f"cannot compute on {arguments.device or f'{devices} x {accelerator}'}: {error}") from None
    if fabric.device.type == "cpu" and arguments.precision == "16-mixed":
        raise SettingsError("--precision 16-mixed needs a GPU; on a CPU take bf16-mixed or 32-true")
    return fabric


def newest_checkpoint() -> Path:
    """The best checkpoint of the newest run under checkpoints/, here or beside sample.py; the shipped one where nothing was trained yet."""
    for folder in (Path("checkpoints"), ROOT / "checkpoints"):
        found = [path for path in folder.rglob("*.ckpt") if path.parent.resolve() != SHIPPED]
        if found:
            newest = max(found, key=lambda path: path.stat().st_mtime)
            best = newest.with_name("best.ckpt")
            return best if best.exists() else newest
    if (shipped := SHIPPED / "countdown_masked.ckpt").exists():
        return shipped
    raise CheckpointError("there is no checkpoint under checkpoints/; train one with `python train.py`, or name one with --ckpt")


def _with_learned_order(run: Run, path: Path) -> Run:
    """Seconds on a small model; the order is a file beside the checkpoint from then on."""
    print("learning an order from how coordinates depend on each other ...", flush=True)
    refuse_unwritable(path.parent, "the order is kept beside the checkpoint: copy it to a folder of your own first")
    ranks = learn_order(run.denoiser, run.source, run.schedule, run.task.seq_len)
    print(f"order       {save_order(path, ranks)}", flush=True)
    return dataclasses.replace(run, ranks=ranks)


def _conditions(arguments: argparse.Namespace, run: Run, device: torch.device) -> dict[str, Any]:
    """Prompt and guidance, for tauflow.evaluate."""
    conditions: dict[str, Any] = {}
    if arguments.prompt is not None and arguments.infill is not None:
        raise SettingsError("give --prompt or --infill, not both")
    if arguments.prompt is not None:
        conditions["prompt"], conditions["prompt_mask"] = run.task.prompt(arguments.prompt)
    if arguments.infill is not None:
        conditions["prompt"], conditions["prompt_mask"] = run.task.infill(arguments.infill)
    if arguments.guidance:
        other = load(arguments.guidance, device=device)
        facts = [(each.task.num_tokens, each.task.seq_len, type(each.source)) for each in (run, other)]
        if facts[0] != facts[1]:
            raise SettingsError(
                f"{arguments.guidance} has another vocabulary, length or source than the checkpoint; guide with one of the same task"
            )
        arguments.guidance_weight = 2.0 if arguments.guidance_weight is None else arguments.guidance_weight
        conditions["guidance"] = (other.denoiser, arguments.guidance_weight)
    elif arguments.guidance_weight is not None:
        raise SettingsError("--guidance_weight needs --guidance PATH, the checkpoint of the unconditional model")
    return conditions


def _settings(arguments: argparse.Namespace, path: Path, run: Run, samplers: dict[str, Sampler], nfes: list[int]) -> dict[str, Any]:
    """All that decides the results, as plain data; the same on any number of devices."""
    names = (
        "num_samples",
        "batch_size",
        "seed",
        "show",
        "prompt",
        "infill",
        "judge",
        "temperature",
        "guidance_weight",
        "dense",
        "precision",
    )
    return {
        "checkpoint": str(path),
        "step": run.step,
        "samplers": list(samplers),
        "nfes": nfes,
        "ranks": run.ranks.tolist() if run.ranks is not None and any(each.needs_ranks for each in samplers.values()) else None,
        "guidance_sha256": digest(arguments.guidance) if arguments.guidance else None,
        **{name: getattr(arguments, name) for name in (*names, *OPTIONS)},
    }


def _done(folder: Path, settings: dict[str, Any]) -> list:
    """The cells that an earlier call with the same settings has finished."""
    refuse_unwritable(folder, "choose another one with --out")
    if not (folder / "results.json").exists():
        return []
    table = Table.read(folder)
    changed = [name for name in settings if name != "checkpoint" and table.settings.get(name) != settings[name]]
    if changed:
        facts = "; ".join(f"{name}: {table.settings.get(name)} there, {settings[name]} now" for name in changed)
        raise SettingsError(f"{folder} holds results with other settings ({facts}); choose another --out, or remove it to start again")
    return [cell for cell in table.cells if not cell.problem]


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 8,16,32") from None
