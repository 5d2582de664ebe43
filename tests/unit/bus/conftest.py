"""Both transports under one suite: what holds for one holds for the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from inference.bus.memory import MemoryBus
from inference.bus.socket import SocketBus

AnyBus: TypeAlias = MemoryBus | SocketBus
UNREAD_LIMIT = 256 * 1024


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's may not be longer than about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="hl-") as name:
        yield Path(name)


@pytest.fixture(params=["memory", "unix"])
def bus(request: pytest.FixtureRequest, folder: Path) -> AnyBus:
    if request.param == "memory":
        return MemoryBus(unread_limit=UNREAD_LIMIT)
    return SocketBus(f"unix:{folder}/bus.sock", unread_limit=UNREAD_LIMIT)
