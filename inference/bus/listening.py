"""How a listening socket is put into the file system, and how a dead peer is noticed.

It knows sockets and files, and nothing of what is said over them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from pathlib import Path

BACKLOG = 128
IDLE_SECONDS = 15


def bind_unix(path: str) -> tuple[socket.socket, int]:
    """Listen at `path`, for this user only; gives the socket and its file's inode.

    A missing folder is made for this user only. A socket file that nobody listens at any more
    is replaced. Raises `OSError` if someone does, or if the file is no socket.
    """
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)  # from its first moment on nobody else may open it
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener, Path(path).stat().st_ino


def remove_unix(path: str, *, inode: int | None) -> None:
    """Take the file away if it is still ours: a successor may have put its own there."""
    try:
        if Path(path).stat().st_ino == inode:
            Path(path).unlink()
    except FileNotFoundError:
        return


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """A host that vanished without a word ends its TCP connections within a minute."""
    found: socket.socket = writer.get_extra_info("socket")
    if found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)  # not every system has all three
        if option is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def _remove_stale(path: str) -> None:
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    if _answers(path):
        raise OSError(errno.EADDRINUSE, "another process listens there", path)
    Path(path).unlink(missing_ok=True)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # a full backlog, a timeout: somebody is there
            return True
        return True
