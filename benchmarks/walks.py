"""How many files you open to follow one call, and a few measures of the code.

    python -m benchmarks walks            # two tables, about two minutes
    python -m benchmarks walks --files    # also the names of the files

A file is crossed by a call if one of its functions runs; what runs while modules are imported doesn't count.
Each walk runs in its own process, in a temporary folder, with the smallest settings that do all steps.
"""

import argparse
import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
CODE = (str(SRC / "tauflow"), str(ROOT / "benchmarks"))
SHIPPED = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"


# Walks


def prepare_train() -> Callable[[], Any]:
    from conftest import TINY  # of tests/

    from tauflow.cli.train import train

    sys.argv = ["train.py", *TINY, "--trainer.max_steps=8", "--trainer.default_root_dir=runs"]
    return train


def prepare_sample_py() -> Callable[[], Any]:
    from tauflow.cli.sample import sample

    words = ["--ckpt", str(SHIPPED), "--nfe", "8", "--num_samples", "2", "--no_progress"]
    return lambda: sample(words)


def prepare_sample() -> Callable[[], Any]:
    import tauflow

    model = tauflow.load(SHIPPED).model
    tauflow.sample(model, "tr_cie", nfe=8)  # the first call also makes every registered sampler, for its name
    return lambda: tauflow.sample(model, "tr_cie", nfe=8)


def prepare_study() -> Callable[[], Any]:
    from benchmarks.studies.command import main as study

    return lambda: study(["countdown", "--smoke", "--out", "study", "--no_progress"])


def prepare_pretrained() -> Callable[[], Any]:
    from language_models import LLADA, LLADA_NAMES, llama_weights, write  # of tests/

    from tauflow.cli.sample import sample

    folder = write(Path("llada"), LLADA, llama_weights(LLADA_NAMES, bias=False))
    words = ["--pretrained", str(folder), "--prompt", "hi", "--max_new_tokens", "8", "--nfe", "4"]
    return lambda: sample([*words, "--no_progress"])


WALKS = {
    "train.py, one validation": prepare_train,
    "sample.py --ckpt": prepare_sample_py,
    'tauflow.sample(model, "tr_cie")': prepare_sample,
    "study countdown": prepare_study,
    "sample.py --pretrained --prompt": prepare_pretrained,
}


def crossed(call: Callable[[], Any]) -> set[str]:
    """Return the files whose functions run in a call."""
    found: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:  # module and class bodies
            return
        name = code.co_filename
        if name not in found and name != __file__ and name.startswith(CODE) and not in_import(frame):
            found.add(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {str(Path(name).relative_to(ROOT)) for name in found}


def in_import(frame: FrameType | None) -> bool:
    """Return whether a frame runs while a module is imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def walk(name: str) -> list[str]:
    """Run a walk in its own process; return the files."""
    paths = os.pathsep.join([str(SRC), str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--walk", name, "--result", f"{folder}/walk.json"]
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"error: {name} failed\n{run.stdout[-1000:]}\n{run.stderr[-3000:]}")
        return json.loads(Path(folder, "walk.json").read_text())


# Measures of the code


def measures() -> dict[str, float]:
    """Measure the code in src/."""
    paths = sorted(SRC.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    lengths = [len(text.splitlines()) for text in texts.values()]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    thousands = sum(lengths) / 1000
    return {
        "files": len(paths),
        "lines": sum(lengths),
        "median file, lines": statistics.median(lengths),
        "median function, lines": statistics.median(each.end_lineno - each.lineno + 1 for each in functions),
        "functions per 1,000 lines": len(functions) / thousands,
        "raise per 1,000 lines": sum(isinstance(node, ast.Raise) for node in nodes) / thousands,
        "conditional expressions per 1,000 lines": sum(isinstance(node, ast.IfExp) for node in nodes)
        / thousands,
        "modules with exactly one importer": sum(len(by) == 1 for by in importers(texts).values()),
    }


def importers(texts: dict[Path, str]) -> dict[str, set[str]]:
    """Return the modules that import each module, packages (`__init__.py`) not counted as imported."""
    names = {".".join(path.relative_to(SRC).with_suffix("").parts): text for path, text in texts.items()}
    found: dict[str, set[str]] = {name: set() for name in names if not name.endswith("__init__")}
    for name, text in names.items():
        for node in ast.walk(ast.parse(text)):
            asked: list[str] = []
            if isinstance(node, ast.Import):
                asked = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                asked = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            for each in found.keys() & set(asked):
                found[each].add(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="also print the names of the files")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.walk:
        arguments.result.write_text(json.dumps(sorted(crossed(WALKS[arguments.walk]()))))
        return
    print(f"{'walk':42}files crossed")
    for name in WALKS:
        files = walk(name)
        print(f"{name:42}{len(files):13}", flush=True)
        if arguments.files:
            print("\n".join(f"    {file}" for file in files))
    print(f"\n{'src/':42}")
    for name, value in measures().items():
        print(f"{name:42}{value:13,.4g}" if value < 1000 else f"{name:42}{value:13,}")


if __name__ == "__main__":
    main()
