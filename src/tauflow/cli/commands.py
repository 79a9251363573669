"""`tauflow train`, `tauflow sample`, ...: the commands by name, with as few imports as each needs.

`train.py` and `sample.py` of the repository start the same commands without an installation.
"""

import sys
from collections.abc import Callable, Sequence

import tauflow
from tauflow.cli.configs import CONFIGS, describe_configs
from tauflow.cli.help import show_help
from tauflow.cli.messages import print_page, suggest

ABOUT = {
    "train": "train a model from a configuration and flags",
    "sample": "sample from a checkpoint or a pretrained model, and measure the samples",
    "export": "write a model to a folder that you can share",
    "push": "upload an exported folder to the Hugging Face Hub",
    "configs": "list the configurations that -c takes by name",
}

HELP = """Train discrete-flow-matching denoisers, and sample from them with few network evaluations.

{commands}

  tauflow train -c countdown -c smoke     # train a tiny model, in under a minute
  tauflow sample                          # sample from it
  tauflow sample --sampler auto euler --nfe 8 16 32 --out results

tauflow COMMAND --help explains a command, tauflow --version prints the version. Runs are written to
checkpoints/ in the current folder. The benchmarks of the paper aren't installed: they need a clone of the
repository, where `python -m benchmarks` lists them.
"""


def run(command: str, words: Sequence[str]) -> None:
    """Run a command with the words after its name, or show its help."""
    try:
        if show_help(command, words):
            return
        start = find_command(command)
    except KeyboardInterrupt:
        sys.exit("\nstopped before anything was done")
    start(list(words))


def find_command(command: str) -> Callable[[list[str]], None]:
    if command == "train":
        from tauflow.cli.train import train

        return train
    if command == "sample":
        from tauflow.cli.sample import sample

        return sample
    if command in ("export", "push"):
        from tauflow.cli import share

        return share.export_command if command == "export" else share.push_command
    return list_configs


def list_configs(words: list[str]) -> None:
    """Print the configurations that come with the package."""
    if words:
        sys.exit(f"error: tauflow configs takes no arguments, got {' '.join(words)}.")
    print_page(f"{describe_configs()}\n\nThey're in {CONFIGS}. Use one with tauflow train -c NAME.")


def main() -> None:
    """Run `tauflow COMMAND ...` with the words of the command line."""
    command, *words = sys.argv[1:] or ["--help"]
    if command in ABOUT:
        run(command, words)
    elif command in ("--help", "-h"):
        commands = "\n".join(f"  tauflow {name:<9}{text}" for name, text in ABOUT.items())
        print_page(HELP.format(commands=commands))
    elif command == "--version":
        print(f"tauflow {tauflow.__version__}")
    else:
        known = ", ".join(ABOUT)
        sys.exit(f"error: Unknown command {command}.{suggest(command, ABOUT)} Commands: {known}.")
