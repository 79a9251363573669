"""The arguments of `python sample.py`, and what it says of unknown ones. Imports nothing heavy."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, get_args

from tauflow.cli.sample_help import DESCRIPTION, epilog
from tauflow.cli.sample_text import add_text_arguments
from tauflow.cli.sample_values import given, given_path, text
from tauflow.samplers import split_specs
from tauflow.samplers.registry import described
from tauflow.samplers.reveal import OrderName

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")

RENAMED = {"guidance_weight": "--guidance W, and the other checkpoint --unconditional PATH"}
"""What became of arguments of earlier versions that are no options of samplers."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without a screen of usage."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; write FLAG=VALUE for a value that starts with a dash"
        self.exit(2, f"error: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = Parser(
        "sample.py",
        description=DESCRIPTION,
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = found.add_argument_group("what to sample")
    add_model_arguments(what)
    what.add_argument(
        "--sampler",
        type=given,
        nargs="+",
        action="extend",
        default=[],
        metavar="SPEC",
        help="see below (default auto)",
    )
    what.add_argument(
        "--nfe",
        type=given,
        nargs="+",
        action="extend",
        default=[],
        metavar="N",
        help="budgets of network evaluations (default 32)",
    )
    what.add_argument(
        "--num_samples",
        type=int,
        metavar="N",
        help="samples of each cell (default 64; 40 pictures; 1 text of a pretrained model)",
    )
    what.add_argument(
        "--batch_size", type=int, metavar="N", help="samples drawn together (default 16; 40 pictures)"
    )
    what.add_argument(
        "--nll_items",
        type=int,
        default=16,
        metavar="N",
        help="validation items whose likelihood is measured with each sampler, or all if there are fewer, "
        "0 for none (default 16)",
    )
    what.add_argument(
        "--seed", type=int, default=0, help="seed of all random draws, 0 to 2**32 - 1 (default 0)"
    )
    add_request_arguments(what)
    add_text_arguments(what)
    add_result_arguments(found)
    add_device_arguments(found)
    return found


def add_request_arguments(group: Any) -> None:
    """Add the arguments that say what the samples are asked to be."""
    group.add_argument(
        "--prompt", type=text, metavar="TEXT", help='known start of every sample; for countdown "31 30 _ 28"'
    )
    group.add_argument(
        "--infill",
        type=text,
        metavar="TEXT",
        help='text with blanks of _, one for each token: "We the ____ of"',
    )
    group.add_argument(
        "--length",
        type=int,
        metavar="N",
        help="tokens of every sample, of a task whose samples vary in length or a pretrained language model",
    )
    group.add_argument(
        "--complete",
        type=given_path,
        metavar="PATH",
        help="picture to complete, of which --keep says what is known",
    )
    group.add_argument(
        "--keep",
        type=given,
        metavar="PART",
        help="left, right, top, bottom, or x0,y0,x1,y1 in pixels of the model's pictures",
    )
    group.add_argument(
        "--condition", type=text, metavar="TEXT", help="what the samples are asked to be, in the task's words"
    )
    group.add_argument(
        "--guidance",
        type=given,
        nargs="+",
        action="extend",
        default=[],
        metavar="W",
        help="weights of guidance by the condition, or by --prompt where there is none; 1 turns it off",
    )
    group.add_argument(
        "--unconditional", type=given_path, metavar="PATH", help="checkpoint to guide away from"
    )
    group.add_argument("--temperature", type=float, default=1.0, help="divides the logits (default 1)")
    group.add_argument(
        "--top_k", type=int, metavar="K", help="tokens of a row that may be drawn (default all)"
    )
    group.add_argument(
        "--top_p", type=float, metavar="P", help="probability that these have together (default 1)"
    )
    _add_learning_arguments(group)


def _add_learning_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the arguments that say what is learned of a model first."""
    group.add_argument(
        "--learn_order", action="store_true", help="learn an order for learned_order first, and keep it"
    )
    group.add_argument(
        "--learn_influence",
        action="store_true",
        help="learn influences for independent first, and keep them",
    )
    counts = "learn counts along this order, by default along all, first, and keep them: auto takes the best"
    orders = ("all", *get_args(OrderName))
    group.add_argument("--learn_counts", nargs="?", const="all", choices=orders, help=counts)


def add_device_arguments(found: argparse.ArgumentParser) -> None:
    """Add the arguments that say where to compute, and how precisely."""
    where = found.add_argument_group("where to compute")
    where.add_argument("--device", type=given, metavar="NAME", help="one device: cpu, cuda, cuda:1, mps")
    where.add_argument(
        "--accelerator",
        type=given,
        default="auto",
        metavar="NAME",
        help="kind of device: auto, cpu, cuda, mps",
    )
    where.add_argument("--devices", type=int, default=1, metavar="N", help="share the samples over N devices")
    where.add_argument(
        "--strategy",
        type=given,
        default="auto",
        metavar="NAME",
        help="how devices share the work, such as ddp",
    )
    where.add_argument(
        "--precision",
        default="32-true",
        choices=PRECISIONS,
        help="precision of the network (default 32-true)",
    )


def add_model_arguments(group: Any) -> None:
    """Add the arguments that say which model is meant."""
    group.add_argument(
        "--ckpt",
        type=given_path,
        metavar="PATH",
        help="checkpoint; by default the best of the newest run, or a shipped one",
    )
    group.add_argument(
        "--task",
        type=given,
        metavar="NAME",
        help="the shipped model of a task, such as countdown, fashion, scenes, molecules",
    )
    group.add_argument(
        "--pretrained",
        type=given,
        metavar="NAME",
        help="a model that others have trained: its folder, or its name on the hub (docs/pretrained.md)",
    )
    group.add_argument(
        "--dtype", type=given, metavar="NAME", help="of the weights of --pretrained, such as bfloat16"
    )
    group.add_argument(
        "--rates",
        type=given,
        metavar="NAME",
        help="how a model on a metric path is sampled: metric (default) or mixture",
    )
    group.add_argument(
        "--classes",
        type=given,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="classes of your own that it may name: module.Class or file.py:Class",
    )
    group.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of its task that a file does not decide, such as files=corpus.txt; repeat for more",
    )
    group.add_argument(
        "--judge",
        type=given,
        metavar="NAMES",
        help="judges of text: ngram, smollm2, a causal model of transformers; of antibodies: sapiens; of "
        "text-to-image: a CLIP model; of molecules: fcd, diversity, moses",
    )


def add_result_arguments(found: argparse.ArgumentParser) -> None:
    """Add the arguments that say what becomes of the results."""
    out = found.add_argument_group("results")
    out.add_argument(
        *("--out", "-o"),
        type=given_path,
        metavar="DIR",
        help="write tables, a plot and samples there; an unfinished one resumes. Without it pictures alone "
        "are written, to the folder samples",
    )
    out.add_argument(
        "--show",
        type=int,
        metavar="N",
        help="samples to show of a single cell, or to keep of each, at most a batch (default 4; 40 pictures)",
    )
    out.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write the results beside the run, where TensorBoard shows them",
    )
    out.add_argument("--no_progress", action="store_true", help="no progress bar")


def refuse_unknown(unknown: list[str], samplers: Sequence[str]) -> None:
    """Exit with what an unknown flag should have been; `samplers` are the specs that were asked for."""
    if not unknown:
        return
    flag, _, value = unknown[0].partition("=")
    name = flag.lstrip("-")
    if name in described():
        if not value and len(unknown) > 1 and not unknown[1].startswith("-"):
            value = unknown[1]
        sys.exit(
            f"error: {name} is an option of samplers: write --sampler '{_suggested(name, value, samplers)}'"
        )
    hint = f"; it is now {RENAMED[name]}" if name in RENAMED else "; see sample.py --help"
    sys.exit(f"error: there is no argument {flag}{hint}")


def _suggested(name: str, value: str, samplers: Sequence[str]) -> str:
    """Return a spec with an option, of the first sampler asked for that has it."""
    owners = dict(described()[name])
    asked = [spec.split("(")[0].strip() for spec in split_specs(samplers)]
    owner = next((sampler for sampler in asked if sampler in owners), next(iter(owners)))
    choices = owners[owner].choices
    example = {"true or false": "true", "number": "0.5"}.get(choices.split(", ")[0], choices.split(", ")[0])
    return f"{owner}({name}={value or example})"
