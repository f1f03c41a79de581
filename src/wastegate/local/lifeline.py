"""Ties a process's life to its parent's, however the parent ends. Linux does it in the kernel; elsewhere the closed
socket of the step loop must do."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process ``number`` when its parent ends, even by kill -9. No effect elsewhere."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended in between: the signal will not come any more
        os.kill(os.getpid(), number)
