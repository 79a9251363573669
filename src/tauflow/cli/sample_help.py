"""What `python sample.py --help` says besides its arguments. Imports nothing heavy."""

import textwrap

from tauflow.samplers import SAMPLERS, SETS
from tauflow.samplers.registry import ALIASES, described

INDENT = " " * 16

DESCRIPTION = """Sample from a trained checkpoint and measure the samples.

With no arguments: takes the newest checkpoint under checkpoints/ (the shipped countdown model before any
run), samples with the recommended sampler, shows samples and their metrics.
With several samplers or budgets: evaluates every combination, a cell, and prints tables.

  python sample.py
  python sample.py --ckpt checkpoints/countdown/version_0/best.ckpt --sampler euler --nfe 16
  python sample.py --sampler "tr_cie(grid=tau)" tr_cie euler --nfe 8 16 32 --num_samples 256 --out results
  python sample.py --sampler paper --nfe 8 16 32 64 --num_samples 1024 --devices 2 --out results --tensorboard
  python sample.py --prompt "31 30 _ 28" --show 2
  python sample.py --ckpt checkpoints/countdown_labels/version_0/best.ckpt --condition 2 --guidance 1 2 4
  python sample.py --ckpt checkpoints/text_masked/version_0/best.ckpt --prompt "The" --temperature 0.8
  python sample.py --ckpt checkpoints/sequences/version_0/best.ckpt --infill "c1ccccc1____N" --length 24
  python sample.py --task fashion --guidance 1 2 4
  python sample.py --task fashion --complete picture.png --keep left
  python sample.py --pretrained LucasJinWang/FUDOKI --condition "a photo of a red cube" --guidance 6 --nfe 8
  python sample.py --pretrained GSAI-ML/LLaDA-8B-Instruct --chat --prompt "Why is the sky blue?" --block 32
"""


def epilog() -> str:
    """Return what the samplers, sets and options are, from the samplers themselves."""
    lines = ['samplers: auto (the recommended one), or names with options, such as "tr_cie(grid=tau)"', ""]
    lines += [textwrap.fill(", ".join(SAMPLERS), 110, initial_indent="  ", subsequent_indent="  "), ""]
    sharp = ", ".join(name for name, make in SAMPLERS.items() if make().sharpens)
    note = f"these sharpen, and do not keep the law of the data: {sharp}"
    lines += [textwrap.fill(note, 110, initial_indent="  ", subsequent_indent="  "), ""]
    also = "published names of these: " + ", ".join(f"{name} is {spec}" for name, spec in ALIASES.items())
    lines += [textwrap.fill(also, 110, initial_indent="  ", subsequent_indent="  "), ""]
    lines += ["  one of your own: path/to/file.py:Class(option=value), or package.module.Class", ""]
    lines += [
        "sets: " + ", ".join(SETS) + "; members that cannot sample the model are skipped, with a note",
        "",
    ]
    lines += ["options of the samplers:"]
    for name, owners in described().items():
        for option in dict.fromkeys(option for _, option in owners):
            having = ", ".join(sampler for sampler, each in owners if each == option)
            lines.append(f"  {name:<14}{option.help} ({option.choices})")
            lines.append(textwrap.fill(f"of {having}", 110, initial_indent=INDENT, subsequent_indent=INDENT))
    lines += [
        "",
        "docs/samplers.md explains every sampler and option, docs/monitoring.md the files that --out writes.",
    ]
    return "\n".join(lines)
