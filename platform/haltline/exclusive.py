"""What one `serve` must have for itself: its home, and its port. Refusals say what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from haltline.home import Home


class TakenError(Exception):
    """Somebody else has it; the text is for the operator."""


@contextmanager
def home_lock(home: Home) -> Iterator[None]:
    """Raises `TakenError` if another process holds it. It cannot outlive the process."""
    path = home.root / "serve.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(handle, home)
        os.truncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def _lock(handle: int, home: Home) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 32).decode() or "unknown"
        raise TakenError(
            f"Haltline already runs on {home.root} (process {holder}). Stop it first, or choose "
            "another folder with HALTLINE_HOME."
        ) from None


def port_check(bind: str, port: int) -> None:
    """Raises `TakenError` if nobody could listen there now."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
            probe.listen(1)
        except OSError as problem:
            raise TakenError(_why(problem, bind, port)) from None


def _why(problem: OSError, bind: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {bind} is taken by another process. Stop that one, or choose "
            "another port with HALTLINE_PORT."
        )
    return (
        f"cannot listen on {bind}, port {port} (HALTLINE_BIND, HALTLINE_PORT): {problem.strerror}"
    )
