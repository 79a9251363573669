"""Stopping at SIGTERM as at Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in this block, as SIGINT does."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a program that a signal has stopped: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + int(stop.args[0] if stop.args else signal.SIGINT)


def _stop(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(number)
