"""Who may import what: the layers of the package, and what `import tauflow` may bring along."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "tauflow"
HEAVY = {"lightning", "transformers", "datasets", "tokenizers", "torchmetrics", "tensorboard"}

# module -> what of tauflow it may import; a heavy package is allowed where "heavy" stands
ALLOWED = {
    "errors": set(),
    "seeds": set(),
    "processes": set(),
    "schedules": set(),
    "sources": set(),
    "networks": set(),
    "paths": {"schedules", "sources"},
    "losses": {"schedules", "sources"},
    "denoisers": {"errors", "sources"},
    "samplers.grids": {"schedules"},
    "samplers.leap": {"errors", "denoisers", "sources"},
    "samplers.base": {"errors", "denoisers", "schedules", "sources", "samplers.grids", "samplers.leap"},
    "samplers.spacing": set(),
    "samplers.leaping": {"errors", "samplers.base", "samplers.grids", "samplers.leap"},
    "samplers.tweedie": {"sources", "samplers.base", "samplers.leap", "samplers.leaping"},
    "samplers.theta": {"errors", "samplers.base", "samplers.grids", "samplers.leap", "samplers.leaping"},
    "samplers.reveal": {"errors", "denoisers", "sources", "samplers.base", "samplers.grids", "samplers.leap", "samplers.spacing"},
    "samplers.bridge": {"errors", "denoisers", "sources", "samplers.base", "samplers.grids", "samplers.leap"},
    "sampling": {"errors", "denoisers", "schedules", "sources", "samplers", "samplers.base"},
    "orders": {"errors", "files", "denoisers", "schedules", "sources", "sampling"},
    "oracles": {
        *("denoisers", "schedules", "sources", "samplers.base", "samplers.bridge", "samplers.grids", "samplers.leap", "samplers.leaping"),
        *("samplers.theta", "tasks.countdown", "heavy"),
    },
    "diagnostics": {
        *("errors", "denoisers", "schedules", "sources", "oracles", "samplers.base", "samplers.grids", "samplers.leap", "samplers.leaping"),
    },
    "studies.base": {"errors", "files", "runs", "tables"},
    "studies.report": {"errors", "files", "plots", "samplers", "studies.base"},
    "studies.pages": {"errors", "files", "studies.base", "studies.report"},
    "studies.models": {"errors", "evaluation", "runs", "samplers", "sampling", "studies.base", "tables"},
    "studies.theory": {
        *("denoisers", "errors", "oracles", "runs", "sampling", "schedules", "sources", "studies.base", "studies.models", "tables"),
    },
    "studies.observed": {
        *(
            "diagnostics",
            "errors",
            "oracles",
            "sampling",
            "samplers.base",
            "samplers.grids",
            "schedules",
            "seeds",
            "sources",
            "studies.base",
            "tables",
        ),
    },
    "studies.laws": {
        *("denoisers", "oracles", "runs", "schedules", "seeds", "sources", "tasks.base", "tasks.countdown", "heavy"),
    },
    "studies.beyond": {
        *("errors", "oracles", "orders", "runs", "samplers", "sampling", "tables"),
        *("studies.base", "studies.laws", "studies.models", "studies.theory"),
    },
    "studies.runtime": {
        *("errors", "evaluation", "runs", "samplers", "sampling", "schedules", "sources", "studies.base", "tables", "tasks.base"),
    },
    "ema": set(),
    "files": {"errors"},
    "checkpoints": {"errors", "files", "heavy"},
    "callbacks": {"errors", "module", "heavy"},
    "tables": {"errors", "files", "plots", "tasks.base"},
    "plots": {"samplers", "tables"},
    "evaluation": {
        *("errors", "seeds", "denoisers", "processes", "samplers", "sampling", "runs", "tables", "tasks.base", "heavy"),
    },
    "monitoring": {
        *("errors", "callbacks", "checkpoints", "evaluation", "module", "plots", "runs", "tables", "heavy"),
    },
    "ngrams": {"errors"},
    "judges": {"errors", "ngrams", "heavy"},
    "tasks.base": {"errors", "seeds", "heavy"},
    "tasks.corpus": {"errors", "seeds", "heavy"},
    "tasks.vocabulary": {"errors", "heavy"},
    "tasks.blocks": {"errors", "seeds", "tasks.corpus", "tasks.vocabulary", "heavy"},
    "tasks.statistics": {"errors", "files", "ngrams"},
    "tasks.text": {
        *("errors", "files", "judges", "tasks.base", "tasks.blocks", "tasks.corpus", "tasks.statistics", "tasks.vocabulary", "heavy"),
    },
    "tasks.countdown": {"errors", "seeds", "tasks.base", "heavy"},
    "module": {
        *("errors", "seeds", "schedules", "sources", "paths", "losses", "networks", "denoisers", "ema", "checkpoints", "heavy"),
    },
    "runs": {"errors", "schedules", "sources", "networks", "denoisers", "checkpoints", "module", "orders", "tasks", "heavy"},
}
FREE = {  # nobody imports cli
    *("__init__", "cli.__init__", "cli.training", "cli.sampling", "samplers.__init__", "studies.__init__", "studies.__main__"),
    "tasks.__init__",
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"tauflow.{alias.name}" for alias in node.names} if node.module == "tauflow" else {node.module}
    return found


MODULES = {str(path.relative_to(SRC).with_suffix("")).replace("/", "."): path for path in SRC.rglob("*.py")}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_layers(name):
    found = imports(MODULES[name])
    assert not any(module.startswith("tauflow.cli") for module in found), "nobody imports cli"
    if name in FREE:
        return
    assert name in ALLOWED, f"say in this test what {name} may import"
    own = {module.removeprefix("tauflow.") for module in found if module.startswith("tauflow.")}
    assert own <= ALLOWED[name]
    assert "heavy" in ALLOWED[name] or not HEAVY & {module.split(".")[0] for module in found}


def test_import_is_light():
    code = f"import sys, tauflow; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_public_names_exist():
    import tauflow

    for name in tauflow.__all__:
        assert getattr(tauflow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tauflow.nonsense  # noqa: B018
