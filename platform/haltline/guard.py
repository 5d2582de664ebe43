"""Runs one command and ends its process group when the parent is gone, however it went.

For systems without PR_SET_PDEATHSIG. The parent holds the writing end of a pipe; its end of file
here means that the parent is gone. Standard library only, so that it starts in milliseconds:
`python guard.py <reading end> <command> …`. It ends as the command ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_GRACE = 10.0


def main(lifeline: int, command: list[str]) -> int:
    child = subprocess.Popen(command)  # noqa: S603  # our own command

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, pass_on)
    threading.Thread(target=_end_with_parent, args=(lifeline, child), daemon=True).start()
    code = child.wait()
    if code < 0:
        _die_of(-code)
    return code


def _die_of(number: int) -> None:
    """The parent is to see how the command ended."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _end_with_parent(lifeline: int, child: subprocess.Popen[bytes]) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns at the end of file
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
