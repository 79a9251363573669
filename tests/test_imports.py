"""Rules for the whole tree: which layer may import which, what an import brings along, and words to avoid."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest
from conftest import ROOT

SRC = ROOT / "src" / "tauflow"
LAYERS = [
    "process",
    "denoise",
    "samplers",
    ("tasks", "networks"),
    "train",
    ("evaluation", "recipes", "integrations"),
    "cli",
]
"""Each may import those before it; what stands beside the packages may be imported by all."""
RANK = {
    name: rank for rank, names in enumerate(LAYERS) for name in ([names] if isinstance(names, str) else names)
}
HEAVY = {"lightning", "transformers", "datasets", "tokenizers", "torchmetrics", "tensorboard", "matplotlib"}
MAY_BE_HEAVY = {"tasks", "train", "evaluation", "recipes", "integrations", "cli"}

MODULES = {
    ".".join(("tauflow", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in SRC.rglob("*.py")
}


@cache
def imports(module: str) -> frozenset[str]:
    """What a module imports when it is imported: not inside functions, not for the type checker alone."""
    tree = ast.parse(MODULES[module].read_text())
    found = set()
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def reached(module: str) -> set[str]:
    """All modules that importing a module brings along, its packages included; and foreign ones."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        parents = [".".join(name.split(".")[:n]) for n in range(2, name.count(".") + 2)]
        for each in parents:
            if each in MODULES and each not in found:
                found.add(each)
                waiting += imports(each)
        if not name.startswith("tauflow"):
            found.add(name.split(".")[0])
    return found


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_layers():
    """A module imports no module of its own rank or above, but for its own package."""
    wrong = [
        (module, name)
        for module in MODULES
        if layer(module) in RANK
        for name in reached(module)
        if name in MODULES
        and layer(name) in RANK
        and layer(name) != layer(module)
        and RANK[layer(name)] >= RANK[layer(module)]
    ]
    assert not wrong


def test_core_needs_torch_and_numpy_only():
    heavy = [module for module in MODULES if layer(module) not in MAY_BE_HEAVY and HEAVY & reached(module)]
    assert not heavy


def test_tasks_bring_no_lightning():
    """A task is data and metrics; the Lightning data module around it is tasks/data.py."""
    for module in MODULES:
        if layer(module) == "tasks" and module != "tauflow.tasks.data":
            assert "lightning" not in reached(module), module


def test_layers_are_all_named():
    assert {layer(name) for name in MODULES if MODULES[name].parent != SRC} == set(RANK)


def loaded_by(code: str) -> set[str]:
    command = f"import sys; {code}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_imports_are_light():
    assert loaded_by("import tauflow, benchmarks.theory.observers, tauflow.networks") == set()


def test_public_names_exist():
    import tauflow

    for name in tauflow.__all__:
        assert getattr(tauflow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tauflow.nonsense  # noqa: B018


def test_only_the_process_looks_at_its_source():
    for path in SRC.rglob("*.py"):
        if path.parent.name != "process":
            assert not re.search(r"isinstance\([^)]*(Masked|Uniform|Marginal)\b", path.read_text()), path


UNWANTED = re.compile(
    r"\b(mend(s|ed|ing)?|rooms?|(leave|leaves|leaving|left) out|(go|goes|going|went) on)\b", re.IGNORECASE
)
"""Unusual words for fix, module, skip or omit, and continue or resume."""


def test_usual_words():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for path in [*sorted(SRC.rglob("*.py")), *pages]:
        found = [line for line in path.read_text().splitlines() if UNWANTED.search(line)]
        assert not found, path
