"""`tauflow export` and `tauflow push`: a model as a folder, and the folder on the Hugging Face Hub."""

import argparse
import shlex
from typing import NoReturn

from tauflow.cli.messages import exit_with_message
from tauflow.errors import program

EXPORT = """Write a model to a folder that you can share: safetensors, config, tokenizer, and a model card.

  tauflow export checkpoints/text/version_0 my-model
  tauflow export checkpoints/text my-model --half      # the newest run, 16-bit weights
  tauflow sample --ckpt my-model"""
PUSH = """Upload an exported folder to the Hugging Face Hub. Log in first, with `hf auth login`.

  tauflow export checkpoints/text my-model
  tauflow push my-model user/my-model --private
  tauflow sample --ckpt user/my-model"""


class Parser(argparse.ArgumentParser):
    def __init__(self, name: str, description: str):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(f"tauflow {name}", description=description, formatter_class=formatter)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}. See {self.prog} --help.\n")


def export_command(words: list[str]) -> None:
    """Run `tauflow export` with the words after it."""
    parser = Parser("export", EXPORT)
    parser.add_argument(
        "run",
        metavar="RUN",
        help="folder of a run (its best.ckpt) or of several, a checkpoint, or a shipped model",
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="folder to write; an earlier export there is replaced"
    )
    parser.add_argument("--half", action="store_true", help="round the weights to 16 bits")
    parser.add_argument("--license", metavar="NAME", help="for the model card, such as apache-2.0")
    parser.add_argument(
        "--classes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="your own classes that the checkpoint may use: module.Class or file.py:Class",
    )
    settings = parser.parse_args(words)
    with exit_with_message(""):
        from tauflow.imports import import_object
        from tauflow.train import export, load

        classes = [import_object(name, object) for name in settings.classes]
        folder = export(
            settings.run,
            settings.folder,
            half=settings.half,
            license=settings.license,
            classes=classes,
            progress=True,
        )
        for path in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
            print(f"{path.stat().st_size:>12,}  {path}")
        model = load(folder, classes=classes).model
        if model.process.absorbing and not model.counts:
            command = f"{program('sample')} --ckpt {shlex.quote(str(folder))} --learn_counts"
            print(f"auto samples better with learned counts: {command}")


def push_command(words: list[str]) -> None:
    """Run `tauflow push` with the words after it."""
    parser = Parser("push", PUSH)
    parser.add_argument("folder", metavar="FOLDER", help="what `tauflow export` wrote")
    parser.add_argument("name", metavar="USER/NAME", help="repository on the Hub; it's made if there is none")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    settings = parser.parse_args(words)
    with exit_with_message(""):
        from tauflow.train import push

        print(push(settings.folder, settings.name, private=settings.private))
