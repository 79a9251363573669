"""kill -9 at random moments: a run that is resumed ends as the undisturbed one, in every file it writes."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import ENV, ROOT, TINY, assert_equal, load_plain, read_scalars

from tauflow.evaluation.results import Results

KILLS = 8
PER_CHAIN = 4  # kills of one run before it may end
ARGS = [
    *TINY,
    *("--trainer.max_steps=14", "--data.epoch_items=32", "--checkpoints.every_n_steps=2"),
    *("--evaluation.samplers=[tr_cie]", "--evaluation.nfes=[2,16]", "--evaluation.num_samples=4"),
    *("--evaluation.batch_size=4", "--evaluation.every_n_validations=2"),
]
TIMES = ("seconds", "per_second", "time/", "ms_per_sample", "network_share")

pytestmark = pytest.mark.slow


class Runs:
    """A process that has imported everything and runs train.py in forks of itself."""

    def __init__(self):
        command = [sys.executable, str(ROOT / "tests" / "killing" / "runs.py")]
        environment = ENV | {"PYTHONPATH": str(ROOT / "src")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def run(self, root: Path, kill_at: int | None = None, delay: float = 0.0) -> dict:
        root.mkdir(parents=True, exist_ok=True)
        second = int(time.time())
        while int(time.time()) == second:  # event files are named by the second, and read in that order
            time.sleep(0.01)
        resumed = ["--ckpt_path=last"] if list(root.glob("*/last.ckpt")) else []
        args = [*ARGS, f"--trainer.default_root_dir={root}", *resumed]
        order = {"args": args, "root": str(root), "kill_at": kill_at, "delay": delay}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def runs():
    made = Runs()
    yield made
    made.process.stdin.close()
    made.process.wait(timeout=60)


def the_run(root: Path) -> Path:
    """The folder in which training ended; a run that was killed before its first save has another."""
    (last,) = root.glob("*/last.ckpt")
    return last.parent


def points(folder: Path) -> dict:
    """Every point of every curve of a run, with its value unless that is a time."""
    found = {}
    for place in (folder, folder / "tr_cie"):
        for tag, curve in read_scalars(place).items():
            timed = any(word in tag for word in TIMES)
            found[place.name if place != folder else "", tag] = [
                (step, None if timed else value) for step, value in curve
            ]
    return found


def files_of(folder: Path) -> set[str]:
    """What a run leaves, without the record that each resume adds."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    added = r".*tfevents.*|.*\.unfinished|config_from_step_[\d_]+\.yaml|hparams_\d+\.yaml"
    return {str(name) for name in names if not re.fullmatch(added, name.name)}


def assert_same(undisturbed: Path, killed: Path) -> None:
    left, right = load_plain(undisturbed / "last.ckpt"), load_plain(killed / "last.ckpt")
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        assert_equal(left[part], right[part], part)
    best = [load_plain(folder / "best.ckpt")["global_step"] for folder in (undisturbed, killed)]
    assert best[0] == best[1]
    assert points(undisturbed) == points(killed)
    assert files_of(undisturbed) == files_of(killed)
    for name in ("hparams.yaml", "config.yaml"):
        first, second = (yaml.safe_load((folder / name).read_text()) for folder in (undisturbed, killed))
        if name == "config.yaml":
            first["trainer"].pop("default_root_dir"), second["trainer"].pop("default_root_dir")
        assert first == second
    assert Results.read(killed / "evaluation").settings["step"] == 14


def test_killed_at_random_moments_it_ends_as_the_undisturbed_run(runs, tmp_path):
    """Each run is killed some milliseconds after a random one of its file operations: while it saves, logs,
    evaluates or trains. Most of its resumes are killed too."""
    whole = runs.run(tmp_path / "undisturbed" / "runs")
    assert whole["code"] == 0, (tmp_path / "undisturbed" / "log.txt").read_text()
    undisturbed = the_run(tmp_path / "undisturbed" / "runs")
    chance = random.Random(0)
    kills = 0
    chain = 0
    while kills < KILLS:
        root = tmp_path / f"chain_{chain}" / "runs"
        chain += 1
        for _ in range(PER_CHAIN):
            moment = chance.randint(1, whole["events"] // 2)  # what is left to do gets less
            ended = runs.run(root, moment, chance.choice([0.0, 0.0, chance.uniform(0, 0.1)]))
            assert ended["code"] in (0, -9), (root.parent / "log.txt").read_text()
            if ended["code"] == 0:
                break
            kills += 1
        else:
            ended = runs.run(root)
            assert ended["code"] == 0, (root.parent / "log.txt").read_text()
        assert_same(undisturbed, the_run(root))
