"""`python -m benchmarks NAME`: one entry point for studies, speed comparisons, and figures."""

import ast
import importlib.util
import runpy
import sys
from pathlib import Path

from benchmarks.studies import command

SCRIPTS = {
    "pages": "benchmarks.pages",
    "before_after": "benchmarks.speed.before_after",
    "gpt2_step": "benchmarks.speed.gpt2_step",
    "large_vocabulary": "benchmarks.speed.large_vocabulary",
    "sampler_overhead": "benchmarks.speed.sampler_overhead",
    "training_step": "benchmarks.speed.training_step",
    "unet_step": "benchmarks.speed.unet_step",
    "beyond_figure": "benchmarks.figures.beyond_figure",
    "fashion_figures": "benchmarks.figures.fashion_figures",
    "oracle_figure": "benchmarks.figures.oracle_figure",
    "training_curves": "benchmarks.figures.training_curves",
    "cifar10_npz": "benchmarks.cifar10_npz",
    "metric_toy": "benchmarks.metric_toy",
    "moses_reference": "benchmarks.moses_reference",
    "ship": "benchmarks.ship",
    "towers": "benchmarks.towers",
    "faults": "benchmarks.faults",
    "walks": "benchmarks.walks",
}


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] and words[0] in SCRIPTS:
        sys.argv = [f"python -m benchmarks {words[0]}", *words[1:]]
        runpy.run_module(SCRIPTS[words[0]], run_name="__main__")
        return
    if not words or words[0] in ("-h", "--help"):
        print("Scripts, each with its own --help:")
        for name, module in SCRIPTS.items():
            spec = importlib.util.find_spec(module)
            source = Path(spec.origin).read_text() if spec and spec.origin else ""
            text = ast.get_docstring(ast.parse(source)) or ""
            print(f"  {name:<18}{text.splitlines()[0]}")
        print("\nStudies:\n")
        words = ["--help"]
    command.main(words)


if __name__ == "__main__":
    main()
