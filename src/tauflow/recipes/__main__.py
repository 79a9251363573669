"""`python -m tauflow.recipes`: list the recipes, or convert a pretrained model."""

import argparse
import sys
from pathlib import Path

from tauflow.errors import TauflowError
from tauflow.recipes.loading import RECIPES, convert


def main(argv: list[str] | None = None) -> None:
    """Run the command line; exit with one line if the user can fix the cause."""
    parser = argparse.ArgumentParser("python -m tauflow.recipes", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | convert")
    commands.add_parser("list", help="show the recipes and how their folders are recognized")
    converting = commands.add_parser("convert", help="write what sampling needs to a new folder")
    converting.add_argument("model", metavar="FOLDER", help="folder of the model, or its name on the hub")
    converting.add_argument("out", type=Path, metavar="OUT", help="new folder")
    arguments = parser.parse_args(argv)
    if arguments.command == "list":
        for recipe in RECIPES:
            hub = f", on the hub {', '.join(recipe.hub)}" if recipe.hub else ""
            print(f"{recipe.name}: {recipe.kind}{hub}; rates {', '.join(recipe.rates)}")
        return
    try:
        missing = convert(arguments.model, arguments.out)
    except TauflowError as error:
        sys.exit(f"error: {error}")
    print(f"written to  {arguments.out}")
    if missing:
        print(f"without     {', '.join(missing)}, which the folder doesn't have")


if __name__ == "__main__":
    main()
