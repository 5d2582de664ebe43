"""The bus within one process: the double that ships, with the real one's semantics.

Messages go through `encode` and `decode` as on a socket, so that what could not travel fails
here too. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from inference.bus import ConnectionClosedError, Handler
from inference.bus.socket import FLUSH_SECONDS, WRITE_LIMIT_BYTES, run_handler
from inference.errors import WireError
from inference.wire import MAX_FRAME_BYTES, AnyMessage, decode, encode


class MemoryConnection:
    """One end. Its `_peer_end` holds what this side has sent until it is received."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name, self._limit = name, limit
        self._frames: deque[bytes] = deque()
        self._unread = 0
        self._arrived = asyncio.Event()
        self._closed = False
        self._peer_end: MemoryConnection | None = None

    @property
    def peer(self) -> str:
        return self._name

    def join(self, other: MemoryConnection) -> None:
        """Make the two ends of one connection."""
        self._peer_end, other._peer_end = other, self

    def send(self, message: AnyMessage) -> None:
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue bytes as one frame, as they are."""
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"a message of {len(frame)} bytes is longer than a frame may be")
        other = self._peer_end
        if self._closed or other is None or other._closed:
            raise ConnectionClosedError(f"{self._name} is gone")
        if other._unread > self._limit:
            self._cut(other)
        other._put(frame)

    async def receive(self) -> AnyMessage:
        while not self._frames:
            if self._closed or self._peer_end is None or self._peer_end._closed:
                raise ConnectionClosedError(f"{self._name} is gone")
            self._arrived.clear()
            await self._arrived.wait()
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self._name} is closed")
        frame = self._frames.popleft()
        self._unread -= len(frame)
        return decode(frame)

    async def close(self) -> None:
        self._closed = True
        self._arrived.set()
        if self._peer_end is not None:
            self._peer_end._arrived.set()

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._unread += len(frame)
        self._arrived.set()

    def _cut(self, other: MemoryConnection) -> None:
        for end in (self, other):
            end._frames.clear()
            end._closed = True
            end._arrived.set()
        raise ConnectionClosedError(f"{self._name} was cut off: it left too much unread")


class MemoryServer:
    def __init__(self, bus: MemoryBus, handler: Handler) -> None:
        self._bus, self._handler = bus, handler
        self._tasks: dict[asyncio.Task[None], MemoryConnection] = {}

    async def close(self) -> None:
        self._bus.leave(self)
        for connection in list(self._tasks.values()):
            await connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self, connection: MemoryConnection) -> None:
        task = asyncio.create_task(run_handler(self._handler, connection))
        self._tasks[task] = connection
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


class MemoryBus:
    """`unread_limit`: bytes that may wait unread by a peer before it is cut off."""

    def __init__(self, *, unread_limit: int = WRITE_LIMIT_BYTES) -> None:
        self._limit = unread_limit
        self._server: MemoryServer | None = None
        self._count = 0

    async def serve(self, handler: Handler) -> MemoryServer:
        if self._server is not None:
            raise OSError("another engine listens on this bus")
        self._server = MemoryServer(self, handler)
        return self._server

    async def connect(self) -> MemoryConnection:
        if self._server is None:
            raise ConnectionRefusedError("no engine listens on this bus")
        self._count += 1
        near = MemoryConnection("engine", limit=self._limit)
        far = MemoryConnection(f"client#{self._count}", limit=self._limit)
        near.join(far)
        self._server.open(far)
        return near

    def leave(self, server: MemoryServer) -> None:
        if self._server is server:
            self._server = None
