"""Nets under a refactor: what users see by name, and what the shipped models and a study give.

nets.json holds what was recorded. `python tests/test_nets.py` records it again; only a deliberate change of
the public names, the flags, or the numbers may need that. Networks compute slightly different numbers on
different kinds of CPUs, which may change a token, so samples and the study are compared only on the kind of
CPU that recorded them.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile

import pytest
import torch
import yaml
from conftest import ROOT

import tauflow
from tauflow.train import SHIPPED

FILE = ROOT / "tests" / "nets.json"
MODELS = ("countdown_masked", "countdown_uniform", "fashion", "molecules", "scenes")
SAMPLERS = ("tr_cie", "euler", "auto")
CPU = torch.backends.cpu.get_cpu_capability()


def printed(script, *words: str) -> str:
    """Return what an entry point prints."""
    text = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setattr(sys, "argv", ["script.py", *words])
        with contextlib.suppress(SystemExit):
            script()
    text.seek(0)
    return text.read()


def public_names() -> list[str]:
    return sorted(tauflow.__all__)


def sample_flags() -> list[str]:
    from tauflow.cli.help import describe

    return sorted(re.findall(r"^  (?:-\w, )?(--\w+)", describe("sample", "all"), re.MULTILINE))


def train_keys() -> list[str]:
    """Return the keys of the configuration, with dots, but for those of Lightning's trainer."""
    from tauflow.cli.train import train

    config = ROOT / "configs" / "countdown.yaml"
    text = printed(train, "-c", str(config), "--print_config")
    return sorted(key for key in keys_of(yaml.safe_load(text)) if not key.startswith("trainer."))


def keys_of(config: dict, before: str = "") -> list[str]:
    found = []
    for name, value in config.items():
        found += keys_of(value, f"{before}{name}.") if isinstance(value, dict) and value else [before + name]
    return found


def study() -> dict[str, str]:
    """Return a digest of what the smallest study records of each cell; it records no times."""
    from benchmarks.studies.command import main
    from tauflow.evaluation.results import Results

    with tempfile.TemporaryDirectory() as folder:
        printed(main, "countdown", "--smoke", "--out", folder, "--no_progress")
        results = Results.read(folder)
    found = {}
    for cell in results.cells:
        values = [
            f"{record.metric} {record.measured.value:.6g} {record.measured.standard_error:.6g}"
            for record in cell.records
        ]
        name = " ".join(map(str, cell.factors.values()))
        found[name] = digest([sorted(values), cell.shown and cell.shown.tokens])
    return found


def samples(name: str) -> dict[str, str]:
    """Return digests of the tokens of two samples of a shipped model."""
    model = tauflow.load(SHIPPED / f"{name}.ckpt").model
    condition = torch.zeros(len(model.conditions), dtype=torch.long) if model.conditions else None
    return {
        sampler: digest(
            tauflow.sample(model, sampler, 8, count=2, condition=condition, seed=0).tokens.tolist()
        )
        for sampler in SAMPLERS
    }


def digest(value) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


RECORDED = json.loads(FILE.read_text()) if FILE.exists() else {}
same_cpu = pytest.mark.skipif(
    RECORDED.get("cpu") != CPU, reason=f"recorded on a CPU with {RECORDED.get('cpu')}, this one has {CPU}"
)


@pytest.mark.parametrize("found", [public_names, sample_flags, train_keys])
def test_names_that_users_write(found):
    assert found() == RECORDED[found.__name__]


@same_cpu
def test_a_study_gives_what_it_gave():
    assert study() == RECORDED["study"]


@same_cpu
@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_give_the_samples_that_they_gave(name):
    assert samples(name) == RECORDED["samples"][name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = {each.__name__: each() for each in (public_names, sample_flags, train_keys)}
    drawn = {"study": study(), "samples": {name: samples(name) for name in MODELS}}
    FILE.write_text(json.dumps({"cpu": CPU, **names, **drawn}, indent=1) + "\n")
    print("recorded", ", ".join(f"{len(value)} {name}" for name, value in (names | drawn).items()))
