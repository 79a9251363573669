"""Stops a program (SIGSTOP) right after it has put the file PAUSE_AT in its place for the first time.

`forked.py` runs this file first in a fork whose environment has PAUSE_AT.
"""

import os
import signal

_replace = os.replace
_waiting = [os.environ.get("PAUSE_AT")]


def _pausing(source, target, **options):
    _replace(source, target, **options)
    if str(target) == _waiting[0]:
        _waiting[0] = None
        os.kill(os.getpid(), signal.SIGSTOP)


os.replace = _pausing
