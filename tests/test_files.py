"""Files that are written atomically: under names that nobody can guess, and never half."""

import errno
import os
import resource
import subprocess
import sys
import time

import pytest
import torch
from conftest import load_plain

from tauflow import files
from tauflow.errors import FolderInUse, WriteError
from tauflow.train.checkpoint import AtomicCheckpointIO

OLD = "the old text"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "last.ckpt"
    found.write_text(OLD)
    return found


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_a_file_is_replaced_when_it_is_complete(path):
    with files.atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == OLD
    assert path.read_text() == "new"
    assert names(path.parent) == ["last.ckpt"]


def test_what_is_not_completed_is_removed(path):
    with pytest.raises(KeyboardInterrupt), files.atomic(path):
        raise KeyboardInterrupt
    assert path.read_text() == OLD
    assert names(path.parent) == ["last.ckpt"]


def test_temporary_names_are_random_and_their_files_are_made_here(path, monkeypatch):
    """The name of one is never used again, and a file or a link that has it already is not opened."""
    seen = set()
    for _ in range(5):
        with files.atomic(path):
            [name] = [each for each in names(path.parent) if each.endswith(".unfinished")]
            seen.add(name)
    assert len(seen) == 5
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    target = path.parent / "target"
    (path.parent / ".last.ckpt.guessed.unfinished").symlink_to(target)
    with pytest.raises(WriteError, match="File exists"), files.atomic(path) as file:
        file.write(b"new")
    assert not target.exists()


def test_a_stray_file_blocks_nothing(path):
    for stray in (".last.ckpt.HOST.abc.unfinished", ".last.ckpt.host.1.unfinished"):
        (path.parent / stray).touch()
    (path.parent / ".last.ckpt.folder.unfinished").mkdir()
    files.write(path, "new")
    assert path.read_text() == "new"
    assert len(names(path.parent)) == 4, "another process may be writing them"


def test_what_a_killed_process_left_is_removed(tmp_path):
    """After ten minutes without a write; names with brackets are no patterns, links are left as they are."""
    path, other = tmp_path / "[a-z]*.ckpt", tmp_path / "b.ckpt"
    link = tmp_path / f".{path.name}.link.unfinished"
    link.symlink_to(tmp_path / "kept")
    (tmp_path / "kept").touch()
    left, fresh, foreign = (
        tmp_path / f".{name}.unfinished" for name in (f"{path.name}.1", f"{path.name}.2", f"{other.name}.3")
    )
    for each in (left, fresh, foreign, tmp_path / "kept"):
        each.touch()
        os.utime(each, (time.time() - (1 if each == fresh else 3600),) * 2)
    files.write(path, "new")
    assert not left.exists()
    assert all(each.exists() for each in (fresh, foreign, tmp_path / "kept"))
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_files_are_as_readable_as_others(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "x", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_the_old_file_stays(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"cannot write .*last\.ckpt \(No space left on device\)") as caught:
        files.write(path, "new")
    assert "the file that was there is untouched" in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(WriteError, match="no half-written file is left"):
        files.write(path.with_name("other"), "new")
    assert path.read_text() == OLD
    assert names(path.parent) == ["last.ckpt"]


@pytest.mark.parametrize("numbers", [10, 10**6])
def test_a_full_disk_is_said_where_torch_meets_it(tmp_path, monkeypatch, numbers):
    """At the end of a small file, and in the middle of a large one, which torch reports in its own words."""
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": torch.zeros(3)}, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # Python ignores the signal of the limit
    try:
        with pytest.raises(WriteError, match=r"last\.ckpt \(File too large\)"):
            AtomicCheckpointIO().save_checkpoint({"a": torch.ones(numbers)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.equal(load_plain(path)["a"], torch.zeros(3))
    assert names(tmp_path) == ["last.ckpt"]


def test_a_place_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="cannot write"):
        files.write(tmp_path / "file" / "below" / "it", "x")
    assert names(tmp_path) == ["file"]


HOLDS = """
import sys
from tauflow import files
with files.lock_folder(sys.argv[1], "advice"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one_process_until_it_ends(tmp_path):
    """Also where it is killed; the file of the lock stays."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(FolderInUse, match="another process is writing"),
            files.lock_folder(tmp_path, "wait"),
        ):
            pass
        other.kill()
        other.wait()
    with files.lock_folder(tmp_path, "wait"):
        assert names(tmp_path) == [files.LOCK]
