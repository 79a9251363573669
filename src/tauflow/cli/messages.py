"""One clear line and an exit code instead of a traceback, for every error that a user can fix."""

import difflib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tauflow.errors import TauflowError


def suggest(word: str, names: Iterable[str], before: str = "") -> str:
    """Return " Did you mean NAME?" with the name most like a word; "" if none is."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f" Did you mean {before}{near[0]}?" if near else ""


@contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in this block, as SIGINT does."""

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def exit_with_message(resume: str) -> Iterator[None]:
    """Exit with one line for every error that a user can fix, and when a signal stops the block.

    Args:
        resume: how the work continues after it was stopped; "" if it starts again.
    """
    from tauflow.distributed import is_lost_rank, rank

    try:
        with stop_on_sigterm():
            yield
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has read enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
        sys.exit(128 + signal.SIGPIPE)
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        sys.exit(f"error: another process died or doesn't answer. {resume or 'Start again'}.")
    except TauflowError as error:
        sys.exit(1 if rank() else f"error: {error}")  # rank 0 prints it for all
    except OSError as error:
        sys.exit(f"error: cannot read or write a file: {error}")
    except KeyboardInterrupt as stop:
        if not rank():
            print(f"\nstopped. {resume}." if resume else "\nstopped", file=sys.stderr)
        sys.exit(128 + int(stop.args[0] if stop.args else signal.SIGINT))  # 130 for SIGINT, 143 for SIGTERM
