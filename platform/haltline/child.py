"""One child process of the supervisor: a session of its own, its output by lines, no orphan.

A child ends when its parent does: on Linux the kernel sends it SIGTERM, elsewhere a guard process
does. It knows nothing of restarts, readiness or order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 64 * 1024
_GUARD = Path(__file__).with_name("guard.py")


class Lifeline:
    """A pipe that is open for as long as this process lives."""

    def __init__(self, *, guarded: bool = sys.platform != "linux") -> None:
        self.guarded = guarded
        self.reading, self._writing = os.pipe()

    def close(self) -> None:
        os.close(self.reading)
        os.close(self._writing)


@dataclass(slots=True)
class Child:
    """`is_silent` once its output has come to its end: it may still live."""

    process: subprocess.Popen[bytes]
    is_silent: bool = False
    _partial: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(
        cls, command: list[str], *, environment: Mapping[str, str], lifeline: Lifeline
    ) -> Child:
        """Call it from the main thread: the kernel ties the child's life to the calling one.

        Raises `OSError` where the command cannot be run.
        """
        if lifeline.guarded:
            command = [sys.executable, "-I", str(_GUARD), str(lifeline.reading), *command]
        process = subprocess.Popen(  # noqa: S603  # the services table's commands
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lifeline.reading] if lifeline.guarded else [],
            preexec_fn=None if lifeline.guarded else _dies_with(os.getpid()),  # noqa: PLW1509
        )
        os.set_blocking(_output_of(process), False)
        return cls(process)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> int:
        return _output_of(self.process)

    def read(self) -> list[str] | None:
        """The lines that have become whole, or None where nothing new has arrived."""
        try:
            data = os.read(self.output, _LONGEST_LINE)
        except BlockingIOError:
            return None
        self.is_silent = not data
        self._partial += data
        if self._partial and (self.is_silent or len(self._partial) > _LONGEST_LINE):
            self._partial += b"\n"
        *whole, rest = self._partial.split(b"\n")
        self._partial = bytearray(rest)
        return [_as_text(bytes(line)) for line in whole]

    def exit_code(self) -> int | None:
        """As a shell would tell it (128 + n for a signal), or None while the child lives."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def ask_to_end(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def sweep(self) -> None:
        """Kill the child and whatever it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left; macOS says PermissionError where only a zombie is

    def close(self) -> None:
        """Take the exit status of a child that has ended or been swept, and close its output."""
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _output_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None  # noqa: S101  # it was started with a pipe
    return process.stdout.fileno()


def _as_text(line: bytes) -> str:
    """A progress bar redraws itself after carriage returns: the last state counts."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _dies_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before the kernel knew of our wish
            os._exit(1)

    return prepare
