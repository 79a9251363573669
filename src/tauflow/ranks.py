"""The process group, if there is one: which rank this is, numbers reduced over all ranks, and lost ranks."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from tauflow.errors import SettingsError, TauflowError

FIRST = "TAUFLOW_FIRST_PROCESS"  # environment variable: the process that started this one as a rank
TIMEOUT = "TAUFLOW_RANK_TIMEOUT"  # environment variable: seconds that a stopped rank is waited for
INTERVAL = 0.2  # seconds between two looks at the other processes
GRACE = 2.0  # seconds in which this rank may end by itself when another one has ended


def backend() -> str:
    distributed = torch.distributed
    return distributed.get_backend() if distributed.is_available() and distributed.is_initialized() else ""


def rank() -> int:
    return torch.distributed.get_rank() if backend() else 0


def world_size() -> int:
    return torch.distributed.get_world_size() if backend() else 1


def over_ranks(values: Iterable[float], operation: str) -> list[float]:
    device = "cuda" if backend() == "nccl" else "cpu"
    tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
    if backend():
        torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, operation))
    return tensor.tolist()


def largest(value: float) -> float:
    return over_ranks([value], "MAX")[0]


class LostRank(TauflowError):
    """Another rank does not answer."""


@contextmanager
def watched(advice: Callable[[], str]) -> Iterator[None]:
    """Stop this process with one line if another rank dies or stays stopped while the block runs.

    The line names the rank and ends with the advice: what is safe, and how to resume. Lightning starts the
    processes inside the block, and all ranks leave it together. Ranks that something else has started
    (torchrun, SLURM) are watched by that.
    """
    watch = _Watch(advice)
    parent = os.getppid()
    started_here = os.environ.get(FIRST) == str(parent)
    if started_here:
        watch.start(lambda: _gone(parent) or watch.stopped(0, parent))
    else:
        os.environ[FIRST] = str(os.getpid())
    try:
        with _in_place_of_lightnings(watch.children):
            yield
        if backend():
            largest(0.0)  # nobody ends, with whatever exit code, before all are here
    except RuntimeError as error:
        if not watch.started:
            raise
        time.sleep(3 * GRACE)  # it may come from a lost rank: the watch then ends this process
        watch.kill()
        if "timed out" not in str(error).lower():
            raise
        said = " ".join(str(error).split())
        raise LostRank(f"another rank does not answer ({said}); {advice()}") from None
    except BaseException:
        watch.kill()
        raise
    finally:
        watch.over.set()
        if not started_here:
            os.environ.pop(FIRST, None)


class _Watch:
    """Looks at the other processes of this machine from a thread of its own."""

    def __init__(self, advice: Callable[[], str]):
        self.advice = advice
        self.over = threading.Event()
        self.started = False
        self.processes: list[subprocess.Popen[bytes]] = []
        self.waited: Counter[int] = Counter()  # {process: looks at which it was stopped}
        self.timeout = _timeout()

    def start(self, lost: Callable[[], str]) -> None:
        """Run the thread; `lost` returns what became of a rank, if one is lost."""
        self.started = True
        threading.Thread(target=self._run, args=(lost,), daemon=True, name="rank-watch").start()

    def children(self, processes: "list[subprocess.Popen[bytes]]") -> None:
        """Look at the processes that this one has started: the ranks after its own."""
        self.processes = processes
        self.start(self._lost_child)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def stopped(self, number: int, process: int) -> str:
        """Return what to say of a process that is stopped for too long.

        Looks are counted, not seconds: Ctrl-Z stops this process too.
        """
        self.waited[process] = self.waited[process] + 1 if _is_stopped(process) else 0
        if self.waited[process] * INTERVAL <= self.timeout:
            return ""
        return f"rank {number} (process {process}) was stopped for {self.timeout:g} s ({TIMEOUT})"

    def _lost_child(self) -> str:
        for number, process in enumerate(self.processes, start=rank() + 1):
            found = _ended(number, process) or self.stopped(number, process.pid)
            if found:
                return found
        return ""

    def _run(self, lost: Callable[[], str]) -> None:
        while not self.over.wait(INTERVAL):
            found = lost()
            if found and not self.over.wait(GRACE):
                self.kill()
                print(f"\nerror: {found}, so all ranks end; {self.advice()}", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread may be inside a collective operation, which nothing else ends


def _ended(number: int, process: "subprocess.Popen[bytes]") -> str:
    code = process.poll()
    if not code:
        return ""
    name = f"rank {number} (process {process.pid})"
    if code > 0:
        return f"{name} ended with exit code {code} (what it said stands above)"
    return f"{name} was ended by signal {-code} ({signal.Signals(-code).name})"


def _gone(parent: int) -> str:
    return "" if os.getppid() == parent else f"rank 0 (process {parent}) ended"


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped, where the system says so in /proc."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def _timeout() -> float:
    words = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(words)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise SettingsError(f"the environment variable {TIMEOUT} is a number of seconds, not {words!r}")
    return seconds


@contextmanager
def _in_place_of_lightnings(observer: Callable[[list[subprocess.Popen[bytes]]], None]) -> Iterator[None]:
    """Let Lightning hand the processes it starts to this observer; its own kills all without a word."""
    from lightning.fabric.strategies.launchers import subprocess_script as fabric
    from lightning.pytorch.strategies.launchers import subprocess_script as trainer

    name = "_launch_process_observer"
    with mock.patch.object(fabric, name, observer), mock.patch.object(trainer, name, observer):
        yield
