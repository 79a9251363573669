"""`python -m benchmarks NAME --out DIR`: one study, its result files and its figure."""

import argparse
import io
import shlex
import sys
import textwrap
from pathlib import Path

from benchmarks.geneval import MASK2FORMER
from benchmarks.studies import STUDIES, Study
from benchmarks.studies.geneval import FILES, GenEval
from benchmarks.studies.report import question, to_markdown
from benchmarks.studies.study import Settings
from tauflow.cli.messages import exit_with_message
from tauflow.denoise.guidance import check_weight
from tauflow.errors import SettingsError, TauflowError
from tauflow.samplers import split_specs
from tauflow.tasks.scenes.clip import CLIP
from tauflow.tasks.task import parse_settings

DESCRIPTION = """Run one study: each measures something that the paper reports, or that a user asks before
choosing a sampler.

Writes results.json, results.csv, results.md and figure.png to --out. Interrupt it at any time: the same
command resumes where it stopped. Studies of samplers on models add to the folder when they are given other
--samplers or --nfes. Every number but times follows from the seeds. With --smoke a study takes seconds and
its numbers mean nothing.

"""

DATA = "where the data of a checkpoint lies, such as files=corpus.txt; repeatable"
LEAST = {"samples": 1, "batch_size": 1, "nll_items": 0, "nfes": 1, "seeds": 0}
MOST = {"nfes": 10**6, "seeds": 2**32 - 1}


GENEVAL = "geneval"  # scores existing images, and has its own flags


def parser() -> argparse.ArgumentParser:
    def lines(name: str, text: str) -> str:
        return textwrap.fill(text, 110, initial_indent=f"  {name:<22}", subsequent_indent=" " * 24)

    questions = {name: question(study) for name, study in STUDIES.items()}
    questions[GENEVAL] = " ".join((GenEval.__doc__ or "").split())
    text = DESCRIPTION + "\n".join(lines(*each) for each in questions.items())
    shape = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(
        "python -m benchmarks", description=text, formatter_class=shape, allow_abbrev=False
    )
    add = found.add_argument
    add("name", choices=questions, metavar="NAME", help=", ".join(questions))
    add("--out", type=folder, required=True, metavar="DIR", help="folder of the result files")
    add("--samples", type=int, metavar="N", help="samples of each cell and seed (default: the study's own)")
    add("--seeds", type=numbers, metavar="NUMBERS", help="comma-separated (default 0,1,2)")
    add("--nfes", type=numbers, metavar="NUMBERS", help="budgets of network evaluations, comma-separated")
    add("--samplers", type=specs, metavar="SPECS", help="specs such as 'euler,tr_cie(grid=tau)', or sets")
    add("--nll_items", type=int, metavar="N", help="of pictures: real items whose nll is measured; 0: none")
    add(
        "--guidance",
        type=weights,
        metavar="WEIGHTS",
        help="of conditions: weights of guidance such as 1,1.5,2",
    )
    add("--batch_size", type=int, metavar="N", help="samples drawn together (default 32)")
    add(
        "--ckpt",
        nargs="+",
        action="extend",
        type=word,
        default=[],
        metavar="PATH",
        help="models to study instead of the shipped ones: checkpoints, folders of runs, exported or "
        "pretrained folders, or names on the Hub",
    )
    add("--data", action="append", default=[], metavar="KEY=VALUE", help=DATA)
    judges = "of text: ngram, smollm2, a causal model of transformers; of molecules: fcd, diversity, moses"
    add("--judge", type=word, metavar="NAMES", help=judges)
    add("--smoke", action="store_true", help="tiny sizes: to see that it works")
    add("--no_progress", action="store_true", help="no progress bar")
    return found


def geneval_parser() -> argparse.ArgumentParser:
    text = textwrap.dedent(f"""\
        Score images by their prompts.

        Reads DIR/NNNNN/metadata.jsonl and DIR/NNNNN/samples/NNNNN.png, as
        benchmarks.geneval.write_folder writes them, and writes {" and ".join(FILES)}.
        Interrupt it at any time: the same command resumes where it stopped. Models are folders
        or names on the hub.""")
    shape = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(
        f"python -m benchmarks {GENEVAL}", description=text, formatter_class=shape, allow_abbrev=False
    )
    add = found.add_argument
    add("--images", type=folder, required=True, metavar="DIR", help="folder of the images")
    add(
        "--out",
        type=folder,
        metavar="DIR",
        help="folder of the result files (default: the folder of the images)",
    )
    add(
        "--detector",
        type=word,
        default=MASK2FORMER,
        metavar="NAME",
        help=f"a Mask2Former with the classes of COCO, or none: only the CLIP score ({MASK2FORMER})",
    )
    add(
        "--colors",
        "--colours",
        type=word,
        default=CLIP,
        metavar="NAME",
        help=f"the CLIP that names colors ({CLIP})",
    )
    add("--clip", type=word, metavar="NAME", help="a CLIP model whose score is computed too (default: none)")
    add("--no_progress", action="store_true", help="no progress bar")
    return found


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± shows ? instead
    if words[:1] == [GENEVAL]:
        score_images(words)
        return
    arguments = parser().parse_args(words)
    if arguments.name == GENEVAL:
        sys.exit(f"error: {GENEVAL} has flags of its own, which come after its name")
    cls = STUDIES[arguments.name]
    with exit_with_message(f"Finished cells are kept, and the same command resumes ({arguments.out})"):
        study = cls(settings_from(arguments, cls))
        results = study.run(arguments.out, not arguments.no_progress, command_of(words))
    print(to_markdown(cls, results))
    print(f"written to  {arguments.out}  ({', '.join(study.written)})")


def score_images(words: list[str]) -> None:
    arguments = geneval_parser().parse_args(words[1:])
    out = arguments.out or arguments.images
    detector = None if arguments.detector == "none" else arguments.detector
    with exit_with_message(f"Finished images are kept, and the same command resumes ({out})"):
        study = GenEval(arguments.images, detector, arguments.colors, arguments.clip)
        report = study.run(out, not arguments.no_progress, command_of(words))
    print(report)
    print(f"written to  {out}  ({', '.join(FILES)})")


def settings_from(arguments: argparse.Namespace, cls: type[Study]) -> Settings:
    """Return the settings of a study: what was asked for, else its own; refuse what means nothing to it."""
    useless = ["ckpt" if name == "checkpoints" else name for name in cls.ignores]
    useless += [name for name in ("nll_items", "guidance") if getattr(cls, name) is None]
    for flag in [*useless, *(["data"] if "ckpt" in useless else [])]:
        if getattr(arguments, flag) not in (None, []):
            raise SettingsError(f"the study {arguments.name} has no use for --{flag}; drop it")
    sizes = {name: getattr(cls, name) for name in ("samples", "seeds", "nfes", "samplers")}
    sizes |= {"nll_items": cls.nll_items or 0, "guidance": cls.guidance or ()}
    sizes |= cls.smoke if arguments.smoke else {}
    for name in (*sizes, "batch_size"):
        value = getattr(arguments, name)
        if value is not None:
            given = value if isinstance(value, tuple) else (value,)
            if name in LEAST and min(given) < LEAST[name]:
                raise SettingsError(f"--{name} must be at least {LEAST[name]}, got {min(given)}.")
            if name in MOST and max(given) > MOST[name]:
                raise SettingsError(f"--{name} must be at most {MOST[name]}, got {max(given)}.")
            sizes[name] = value
    data = parse_settings(arguments.data)
    return Settings(**sizes, checkpoints=tuple(arguments.ckpt), judge=arguments.judge, data=data)


def command_of(words: list[str]) -> str:
    """Return the command as it can be given to a shell again."""
    return f"python -m benchmarks {shlex.join(words)}"


def word(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; name one, or drop the flag")
    return text


def folder(text: str) -> Path:
    return Path(word(text))


def specs(text: str) -> tuple[str, ...]:
    return tuple(split_specs(word(text)))


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 8,16,32") from None


def weights(text: str) -> tuple[float, ...]:
    try:
        return tuple(check_weight(float(word)) for word in text.split(","))
    except (ValueError, TauflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of weights such as 1,1.5,2") from None


if __name__ == "__main__":
    main()
