"""Children that do not outlive whoever started them, even if that one is killed. Linux alone has it."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here, and so before any fork: between fork and exec only the system call itself is safe.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def end_with_parent(by: signal.Signals) -> None:
    """Have the kernel send `by` to this process when the thread that started it ends; nothing elsewhere.

    For a child to call, in its first lines or before exec.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, by)
