"""`--help` of train and sample: what people use most on a screen, and the rest by topic.

Texts come from docstrings and from `SampleSettings`. Those of train.py are read from the source, without
importing it: Lightning takes seconds.
"""

import ast
import contextlib
import dataclasses
import io
import re
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

from tauflow.cli.configs import known_configs
from tauflow.cli.messages import print_page
from tauflow.errors import program

PACKAGE = Path(__file__).parents[1]
WIDTH = 98
INDENT = 36  # of the texts of flags

TOPICS = {
    "train": ("all", "samplers", "data", "model", "evaluation", "checkpoints", "trainer"),
    "sample": ("all", "samplers"),
}


def show_help(command: str, words: Sequence[str]) -> bool:
    """Print the help that the words ask for; return whether they ask for any."""
    asked = next((number for number, word in enumerate(words) if word in ("-h", "--help")), None)
    if asked is None or command not in TOPICS:
        return False
    topic = next((word for word in words[asked + 1 : asked + 2] if not word.startswith("-")), "")
    if topic and topic not in TOPICS[command]:
        sys.exit(f"error: --help must be followed by {', '.join(TOPICS[command])}, or nothing, got {topic}.")
    print_page(describe(command, topic).rstrip())
    return True


def describe(command: str, topic: str = "") -> str:
    """Return the help of a command on a topic; the flags that people use most by default."""
    if topic == "samplers":
        return describe_samplers()
    if command == "train":
        return describe_training(topic)
    return describe_sampling(topic)


def row(flag: str, text: str) -> str:
    """Return a flag and its text, in as many lines as it needs."""
    begin = f"  {flag:<{INDENT - 3}} "
    if len(begin) > INDENT:
        begin = f"  {flag}\n{' ' * INDENT}"
        return begin + textwrap.fill(text, WIDTH - INDENT).replace("\n", "\n" + " " * INDENT)
    return textwrap.fill(begin + text, WIDTH, subsequent_indent=" " * INDENT, drop_whitespace=True)


def section(title: str, rows: Sequence[str]) -> str:
    return "\n".join([title, *rows, ""])


# train


TRAIN_EXAMPLES = """\
{train}                                   # the countdown task, on whatever device there is
{train} -c countdown -c smoke             # a later configuration overrides an earlier one
{train} -c text_masked --data.files "corpus/*.txt"
{train} -c images --data.pictures FOLDER
{train} -c countdown --model.source uniform --model.network.time true
{train} --ckpt_path last                  # resume the newest run of this configuration
{train} -c text_masked --init_from user/model --data.files "mine/*.txt"   # fine-tune"""

SETTINGS: dict[str, list[tuple[str, str, str, tuple[str, ...]]]] = {
    "Data": [
        ("data", "tasks/text/task.py", "Text", ("files",)),
        ("data", "tasks/images/task.py", "Images", ("pictures",)),
        ("data", "tasks/countdown.py", "Countdown", ("batch_size", "epoch_items")),
    ],
    "Model": [
        ("model", "train/module.py", "DFMModule", ("source", "schedule", "condition_dropout")),
        ("model.network", "networks/transformer.py", "TransformerConfig", ("width", "blocks", "time")),
    ],
    "Optimizer": [
        (
            "model.optimizer",
            "train/module.py",
            "OptimizerConfig",
            ("name", "learning_rate", "muon_learning_rate"),
        ),
    ],
    "Evaluation during training": [
        ("evaluation", "evaluation/callback.py", "SamplerEvaluation", ("samplers", "nfes", "num_samples")),
        ("evaluation", "evaluation/callback.py", "SamplerEvaluation", ("every_n_validations",)),
        ("checkpoints", "train/callbacks.py", "Checkpoints", ("monitor", "every_n_steps")),
    ],
}
"""Settings that people use most: where in the configuration, the class that documents them, and names."""

TRAINER = {
    "max_steps N": "optimizer steps",
    "accelerator NAME": "cpu, gpu, mps, or auto",
    "devices N": "devices that share each batch",
    "precision NAME": "32-true, bf16-mixed, or auto: the fast one of this machine",
    "logger CLASS": "TensorBoardLogger (default), CSVLogger, WandbLogger, MLFlowLogger, ...",
    "default_root_dir FOLDER": "where runs are written: FOLDER/version_0 and so on",
}
MORE = {
    "data": "The settings of a task: --data.help Text, and so on.",
    "model": "The settings of a network: --model.network.help TransformerConfig, and so on.",
}
"""Where the settings of a class are, which depend on the class."""
TASKS = ("Countdown", "Text", "Sequences", "Molecules", "Images", "Scenes")
NETWORKS = ("TransformerConfig", "UNetConfig")


def describe_training(topic: str) -> str:
    """Return the help of train.py."""
    if topic:
        return describe_group("" if topic == "all" else topic)
    train = program("train")
    configs = ", ".join(name for name in known_configs() if "_" not in name)
    start = [
        row("-c, --config NAME", f"{configs}, ..., or your own YAML file; repeatable"),
        row("--ckpt_path PATH", "resume a run; last: the newest run of this configuration"),
        row("--init_from MODEL", "start from a trained model: its file, folder, or name"),
        row("--seed_everything N", "seed of the weights, the data order, and the noise"),
        row("--print_config", "print every setting with its value, and exit"),
    ]
    groups = {title: [row(f"--{name}", text) for name, text in settings(title)] for title in SETTINGS}
    groups["Data"].insert(0, row("--data CLASS", f"the task: {', '.join(TASKS)}, or your module.Class"))
    trainer = [row(f"--trainer.{name}", text) for name, text in TRAINER.items()]
    more = [
        row("--help TOPIC", "all settings of a topic: data, model, evaluation, checkpoints, trainer"),
        row("--help samplers", "the samplers, sets of them, and their options"),
        row("--help all", "everything, with all settings of Lightning's Trainer"),
        row("--data.help CLASS", f"the settings of a task: {', '.join(TASKS)}"),
        row("--model.network.help CLASS", f"the settings of a network: {', '.join(NETWORKS)}"),
    ]
    return "\n".join(
        [
            f"Usage: {train} [-c CONFIG ...] [--SETTING VALUE ...]\n",
            "Train a discrete-flow-matching model. Each setting of a configuration is a flag.\n",
            section("Examples", textwrap.indent(TRAIN_EXAMPLES.format(train=train), "  ").splitlines()),
            section("Start", start),
            *(section(title, rows) for title, rows in groups.items()),
            section("Trainer (Lightning's)", trainer),
            section("More help", more),
        ]
    )


def settings(title: str) -> list[tuple[str, str]]:
    """Return the settings of a group by name, with the first sentence about each."""
    found = []
    for prefix, path, cls, names in SETTINGS[title]:
        texts = documented(path, cls)
        found += [(f"{prefix}.{name}", re.split(r"[.;](?: |$)", texts[name])[0]) for name in names]
    return found


def documented(path: str, cls: str) -> dict[str, str]:
    """Return what the docstring of a class says of its arguments, without importing its module."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    (found,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == cls)
    arguments = (ast.get_docstring(found) or "").partition("Args:\n")[2].split("\n\n")[0]
    texts = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}


def describe_group(name: str) -> str:
    """Return what the parser of train.py says of the settings of a group; of all without a name."""
    from tauflow.cli.train import TauflowCLI

    text = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        warnings.simplefilter("ignore")  # of Lightning, which would rather read the command line
        TauflowCLI(["--help"])
    if not name:
        return text.getvalue()
    parts = re.split(r"\n\n(?=\S)", text.getvalue())
    found = [part for part in parts if re.search(rf"^  --{name}\b", part, re.MULTILINE)]
    return "\n\n".join([*found, MORE.get(name, "")])


# sample


SAMPLE_EXAMPLES = """\
{sample}                                              # the newest model, or a shipped one
{sample} --ckpt checkpoints/countdown --sampler euler --nfe 16
{sample} --sampler auto tr_cie euler --nfe 8 16 32 --num_samples 256 --out results
{sample} --task fashion --guidance 1 2 4
{sample} --task fashion --complete picture.png --keep left
{sample} --prompt "31 30 _ 28" --show 2
{sample} --pretrained GSAI-ML/LLaDA-8B-Instruct --chat --prompt "Why is the sky blue?"
{sample} --ckpt checkpoints/sequences --infill "c1ccccc1____N" --length 24"""

COMMON = {
    "Model": ("ckpt", "task", "pretrained"),
    "What to sample": (
        *("sampler", "nfe", "num_samples", "batch_size", "seed", "prompt", "infill", "length", "condition"),
        *("guidance", "temperature", "top_k", "top_p"),
    ),
    "Results": ("out", "show", "tensorboard", "nll_items"),
    "Where to compute": ("device", "devices", "precision"),
}
"""Flags of sample.py that people use most."""


def describe_sampling(topic: str) -> str:
    """Return the help of sample.py."""
    from tauflow.cli.sample import SampleSettings, build_parser, flag_help

    if topic:
        return build_parser().format_help()
    sample = program("sample")
    flags = {each.name: each for each in dataclasses.fields(SampleSettings)}
    groups = []
    for title, names in COMMON.items():
        rows = []
        for name in names:
            metavar = flags[name].metadata.get("metavar", "")
            short = f"{flags[name].metadata['short']}, " if "short" in flags[name].metadata else ""
            rows.append(row(f"{short}--{name} {metavar}".rstrip(), flag_help(flags[name])))
        groups.append(section(title, rows))
    more = [
        row("--help samplers", "the samplers, sets of them, and their options"),
        row("--help all", "every flag"),
    ]
    return "\n".join(
        [
            f"Usage: {sample} [--ckpt PATH] [--sampler SPEC ...] [--nfe N ...] [...]\n",
            "Sample from a model and measure the samples. Several samplers or budgets make a table.\n",
            section("Examples", textwrap.indent(SAMPLE_EXAMPLES.format(sample=sample), "  ").splitlines()),
            *groups,
            section("More help", more),
        ]
    )


# samplers


def describe_samplers() -> str:
    """Return the samplers, sets, and options that the help lists, from the samplers themselves."""
    from tauflow.samplers import SETS
    from tauflow.samplers.registry import ALIASES, described, families, sharpening

    def wrap(text: str, indent: int = 2, first: int = 2) -> str:
        return textwrap.fill(text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * indent)

    aliases = ", ".join(f"{name} is {spec}" for name, spec in ALIASES.items())
    lines = [
        'samplers: auto (the recommended one), or names with options, such as "spaced_even(power=2)"',
        "",
        *(wrap(f"{line}: {', '.join(names)}") for line, names in families().items()),
        "",
        wrap(f"these sharpen, so they don't keep the data distribution: {', '.join(sharpening())}"),
        "",
        wrap(f"published names: {aliases}"),
        "",
        "  your own: path/to/file.py:Class(option=value), or package.module.Class",
        "",
        wrap(f"sets: {', '.join(SETS)}; samplers that can't sample the model are skipped, with a note", 2, 0),
        "",
        "options of the samplers:",
    ]
    for name, owners in described().items():
        for option in dict.fromkeys(option for _, option in owners):
            lines.append(wrap(f"{name:<14}{option.help} ({option.choices})", 16))
            having = ", ".join(sampler for sampler, each in owners if each == option)
            lines.append(wrap(f"of {having}", 16, 16))
    lines += ["", "docs/samplers.md explains every sampler and option."]
    return "\n".join(lines)
