"""`python -m tauflow.studies NAME --out DIR`: one study, its result files and its figure."""

import argparse
import sys
import textwrap
from pathlib import Path

from tauflow.errors import SettingsError, TauflowError
from tauflow.studies import STUDIES
from tauflow.studies.base import Settings, run
from tauflow.studies.report import save

DESCRIPTION = """Run one study: each measures something that the paper reports, or that a user asks before choosing a sampler.

Writes results.json, results.csv, results.md and figure.png to --out. Interrupt it at any time: the same command goes on where it stopped.
Studies of samplers on models add to the folder when they are given other --samplers or --nfes.
Every number follows from the seeds. With --smoke a study takes seconds and its numbers mean nothing.

"""


def parser() -> argparse.ArgumentParser:
    def lines(name: str, study: type) -> str:
        return textwrap.fill(" ".join(study.__doc__.split()), 120, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14)

    text = DESCRIPTION + "\n".join(lines(name, study) for name, study in STUDIES.items())
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tauflow.studies", description=text, formatter_class=shape, allow_abbrev=False)
    parser.add_argument("name", choices=STUDIES, metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the result files")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of each cell and seed (default: the study's own)")
    parser.add_argument("--seeds", type=_numbers, metavar="NUMBERS", help="comma-separated (default 0,1,2)")
    parser.add_argument("--nfes", type=_numbers, metavar="NUMBERS", help="budgets of network evaluations, comma-separated")
    parser.add_argument("--samplers", type=lambda text: tuple(text.split(",")), metavar="NAMES", help="names or sets, comma-separated")
    parser.add_argument("--batch_size", type=int, metavar="N", help="samples drawn together (default 32)")
    parser.add_argument("--ckpt", nargs="+", default=(), metavar="PATH", help="models to study instead of the shipped countdown models")
    parser.add_argument("--judge", metavar="NAMES", help="of text: ngram, smollm2, a causal model of transformers (default: the run's)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: to see that it works")
    parser.add_argument("--no_progress", action="store_true", help="no progress bar")
    return parser


def main(argv: list[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    try:
        cls = STUDIES[arguments.name]
        sizes = {name: getattr(cls, name) for name in ("samples", "seeds", "nfes", "samplers")} | (cls.smoke if arguments.smoke else {})
        given = {name: value for name in (*sizes, "batch_size") if (value := getattr(arguments, name)) is not None}
        settings = Settings(**(sizes | given), checkpoints=tuple(arguments.ckpt), judge=arguments.judge)
        for name in cls.ignores:
            if getattr(arguments, "ckpt" if name == "checkpoints" else name):
                raise SettingsError(
                    f"the study {arguments.name} has no use for --{'ckpt' if name == 'checkpoints' else name}; leave it out"
                )
        if settings.samples < min(1, cls.samples) or settings.batch_size < 1 or min(settings.nfes) < 1:
            raise SettingsError("--samples, --batch_size and --nfes are whole numbers of at least 1")
        study = cls(settings)
        results = run(study, arguments.out, progress=not arguments.no_progress)
        save(study, results, arguments.out, _command(arguments, argv))
    except TauflowError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on where it stopped ({arguments.out})", file=sys.stderr)
        sys.exit(130)
    print((arguments.out / "results.md").read_text())
    print(f"written to  {arguments.out}  (results.json, results.csv, results.md, figure.png)")


def _command(arguments: argparse.Namespace, argv: list[str] | None) -> str:
    return " ".join(["python -m tauflow.studies", *(argv if argv is not None else sys.argv[1:])])


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 8,16,32") from None


if __name__ == "__main__":
    main()
