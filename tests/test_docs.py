"""What people read is true: skeletons and examples run, links lead somewhere, tables are up to date."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ENV, ROOT
from forked import run_script

from tauflow.cli.sample import build_parser
from tauflow.cli.train import train

DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("checkpoints/*.md"), *ROOT.glob("data/*.md")]
)
GUIDES = [page for page in PAGES if page.parent in (ROOT, DOCS)]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MASKED = ROOT / "checkpoints" / "shipped" / "countdown_masked.ckpt"
CHECKPOINT = re.compile(
    r'"checkpoints/(countdown/version_0/best|shipped/countdown_masked)\.ckpt"|"best\.ckpt"'
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text: str) -> list[str]:
    whole = (re.sub(r"\\\n\s*", "", block) for block in blocks(text, "bash"))  # no continued lines
    lines = [line.strip() for block in whole for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    """Run a command of a page in a folder of its own, with the program of this tree."""
    program, script, *arguments = shlex.split(command, comments=True)
    assert program == "python"
    path = ROOT / script if script in ("train.py", "sample.py") else folder / script
    return run_script(path, *arguments, cwd=folder, env=ENV)


# The skeletons of CONTRIBUTING


def skeletons() -> dict[str, tuple[str, list[str]]]:
    """Return the code and the commands of each section that adds something, by the name of the file."""
    found = {}
    for section in re.split(r"^### ", CONTRIBUTING, flags=re.M)[1:]:
        (code,) = blocks(section, "python")
        (name,) = re.findall(r"\A# (my_\w+\.py)\n", code)
        found[name] = code, commands(section.split("\n## ")[0])
    return found


SKELETONS = skeletons()


def test_there_is_a_skeleton_for_everything():
    things = ("source", "sampler", "option", "network", "task", "study")
    assert list(SKELETONS) == [f"my_{thing}.py" for thing in things]


@pytest.mark.slow
@pytest.mark.parametrize("name", SKELETONS)
def test_skeletons_run_as_they_are(name, tmp_path):
    code, lines = SKELETONS[name]
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / name).write_text(code)
    assert lines
    for line in lines:
        shrunk = " --nll_items 2" if "sample.py" in line else ""
        result = run(line + shrunk, tmp_path)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    if name == "my_task.py":
        assert (tmp_path / "results_stripes" / "samples.png").exists()
    if name == "my_study.py":
        assert "Does a lower temperature hide" in result.stdout
    if name == "my_sampler.py":
        assert "my_sampler.LeftToRight(start=right, least=20)" in result.stdout


def test_the_tree_is_the_tree():
    tree = CONTRIBUTING.split("## The tree\n\n```\n")[1].split("```")[0]
    said = set(re.findall(r"^  (\w+)/", tree, re.M)) | set(re.findall(r"(\w+\.py)\b", tree.split("cli/")[1]))
    there = {path.name for path in (ROOT / "src" / "tauflow").iterdir() if path.name[0] not in "._"}
    assert said == there - {"__init__.py", "py.typed"}
    for folder in re.findall(r"^(\w+)/", tree, re.M):
        assert (ROOT / folder).is_dir(), folder


# Examples in the guides


def shrunk(code: str) -> str:
    """Return an example with the shipped model and few samples."""
    code = CHECKPOINT.sub(lambda _: f'"{MASKED}"', code)
    code = re.sub(r"nfe=(32|64), count=(16|32)", "nfe=4, count=2", code)
    return code.replace("range(4)", "range(2)")


@pytest.mark.parametrize("page", ["samplers.md", "diagnostics.md"])
def test_first_example_of_a_guide(page, capsys):
    exec(compile(shrunk(blocks((DOCS / page).read_text(), "python")[0]), page, "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.slow
def test_a_plain_data_loader_trains(tmp_path):
    (code,) = blocks((DOCS / "training.md").read_text(), "python")
    (tmp_path / "plain.py").write_text(code)
    result = run("python plain.py", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("tensor([[") or "\ntensor([[" in result.stdout


@pytest.mark.slow
def test_conditions_in_python(tmp_path):
    """The example of the guide, on a run of a few steps."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    sizes = "--data.length 8 --data.values 6 --data.batch_size 8 --data.epoch_items 16 --data.val_items 6"
    tiny = f"{sizes} --trainer.max_steps 2 --evaluation.nfes [2] --evaluation.num_samples 4"
    trained = run(f"python train.py -c configs/countdown_labels.yaml {tiny}", tmp_path)
    assert trained.returncode == 0, trained.stderr
    (code,) = blocks((DOCS / "conditions.md").read_text(), "python")
    (tmp_path / "example.py").write_text(code)
    result = run("python example.py", tmp_path)
    assert result.returncode == 0, result.stderr
    assert [f"step {step}" in result.stdout for step in (1, 2, 3)] == [True] * 3


def test_flags_of_sample_py_exist():
    for line in [line for page in GUIDES for line in commands(page.read_text())]:
        words = shlex.split(line, comments=True)
        if words[:2] == ["python", "sample.py"] and "--help" not in words:
            build_parser().parse_args(words[2:])  # exits where a flag does not exist


TRAINING = {
    line
    for page in (*GUIDES, DOCS / "results" / "text.md")
    if page.name not in ("README.md", "CONTRIBUTING.md")  # whose commands are run
    for line in commands(page.read_text())
    if line.startswith("python train.py -")
}


@pytest.mark.parametrize("line", sorted(TRAINING))
def test_flags_of_train_py_exist(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [*shlex.split(line, comments=True)[1:], "--print_config"])
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code in (0, None)
    assert "class_path" in capsys.readouterr().out


# What is written from the code


def test_names_of_the_reference_exist():
    for page in sorted((DOCS / "api").glob("*.md")):
        names = re.findall(r"^::: (\S+)$", page.read_text(), re.M)
        assert names or page.name == "index.md"
        for name in names:
            resolve(name)


def resolve(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def test_every_page_is_in_the_site():
    site = yaml.safe_load((ROOT / ".ci" / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(site["nav"])))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.name != "results.md"}
    assert listed == there


# Links


def anchor(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


def test_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
            file, _, part = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            assert path.exists(), f"{target} in {name_of(page)}"
            if part:
                headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
                assert part in [anchor(heading) for heading in headings], f"{target} in {name_of(page)}"


def test_test_files_in_the_guides_exist():
    for page in GUIDES:
        for file in re.findall(r"\btests/[\w/]+\.\w+", page.read_text()):
            assert list((ROOT / "tests").rglob(Path(file).name)), f"{file} in {name_of(page)}"


# Files that tools read


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert citation["version"] == project["version"] == newest[1]
    assert citation["license"] == project["license"]


def test_commits_are_checked_with_the_tools_of_the_dev_install():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    hooks = [hook["entry"].split()[0] for repo in config["repos"] for hook in repo["hooks"]]
    assert sorted(hooks) == ["mypy", "ruff", "ruff"]
    assert (ROOT / ".ci" / "run").exists()
