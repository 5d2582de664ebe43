"""Who runs on this machine: what the tests ask about Haltline's processes, with /proc or ps."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    is_zombie: bool
    command: str


def processes() -> list[Process]:
    if _PROC.joinpath("self", "stat").exists():
        found = [_from_proc(path) for path in _PROC.iterdir() if path.name.isdigit()]
        return [process for process in found if process is not None]
    listing = ["ps", "-axo", "pid=,ppid=,stat=,command="]
    done = subprocess.run(listing, check=True, capture_output=True, text=True)
    return [_from_ps(line) for line in done.stdout.splitlines()]


def _from_proc(path: Path) -> Process | None:
    try:
        command = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        fields = path.joinpath("stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it ended while we looked
    return Process(int(path.name), int(fields[1]), fields[0] == "Z", command)


def _from_ps(line: str) -> Process:
    pid, parent, state, *command = line.split(maxsplit=3)
    return Process(int(pid), int(parent), state.startswith("Z"), "".join(command))


def descendants_of(pid: int) -> list[Process]:
    everybody = processes()
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [process for process in everybody if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def is_gone(pid: int) -> bool:
    return all(process.pid != pid or process.is_zombie for process in processes())


def wait_until(condition: Callable[[], object], *, seconds: float = 30.0, what: str = "") -> None:
    """Look again and again, because on a busy machine nothing takes a fixed time."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, what or "it did not happen in time"
        time.sleep(0.05)
