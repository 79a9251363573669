"""`python -m benchmarks NAME`: one entry point for studies, speed comparisons, figures, and checks.

Nothing heavy is imported before a name is chosen, so `--help` is instant: it reads docstrings from the files.
"""

import ast
import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from benchmarks import study_name

FOLDER = Path(__file__).parent
SCRIPTS = {
    "pages": "pages",
    "before_after": "speed.before_after",
    "gpt2_step": "speed.gpt2_step",
    "optimizers": "speed.optimizers",
    "large_vocabulary": "speed.large_vocabulary",
    "sampler_overhead": "speed.sampler_overhead",
    "training_step": "speed.training_step",
    "unet_step": "speed.unet_step",
    "beyond_figure": "figures.beyond_figure",
    "fashion_figures": "figures.fashion_figures",
    "oracle_figure": "figures.oracle_figure",
    "training_curves": "figures.training_curves",
    "cifar10_npz": "cifar10_npz",
    "metric_toy": "metric_toy",
    "moses_reference": "moses_reference",
    "ship": "ship",
    "towers": "towers",
    "faults": "faults",
    "walks": "walks",
}


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(overview())
    elif words[0] in SCRIPTS:
        sys.argv = [f"python -m benchmarks {words[0]}", *words[1:]]
        runpy.run_module(f"benchmarks.{SCRIPTS[words[0]]}", run_name="__main__")
    else:
        from benchmarks.studies.command import main as run_study

        run_study(words)


def overview() -> str:
    """Return one line per script and study."""
    lines = ["usage: python -m benchmarks NAME ..., each NAME has its own --help", "", "Scripts:"]
    for name, module in SCRIPTS.items():
        tree = ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        lines.append(entry(name, ast.get_docstring(tree)))
    lines += ["", "Studies, which write results.json, results.csv, results.md and figure.png to --out DIR:"]
    lines += [entry(name, docstring) for name, docstring in studies()]
    return "\n".join(lines)


def entry(name: str, docstring: str | None) -> str:
    summary = (docstring or "").split("\n\n")[0]
    return f"  {name:<24}{textwrap.shorten(summary, 88, placeholder=' ...')}"


def studies() -> Iterator[tuple[str, str | None]]:
    """Yield the name and the question of each study that studies/__init__.py names, without importing it."""
    for statement in ast.parse((FOLDER / "studies" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.module and ".studies." in statement.module:
            file = FOLDER / "studies" / f"{statement.module.rpartition('.')[2]}.py"
            imported = {alias.name for alias in statement.names} - {"Study"}
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name in imported:
                    yield study_name(node.name), ast.get_docstring(node)
    yield "geneval", "Score images by GenEval's rules, and by CLIP."


if __name__ == "__main__":
    main()
