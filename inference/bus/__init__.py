"""The bus between web or task processes and an engine: two small protocols.

A `Connection` carries messages in order, both ways, and its end means something: the engine
aborts what was attached to it, the web process fails or requeues what it had sent over it.
`socket` is the real transport, `memory` the double that ships for tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from inference.wire import AnyMessage


class ConnectionClosedError(ConnectionError):
    """The other side is gone, or this side has closed the connection."""


class Connection(Protocol):
    """One end of an ordered, two-way stream of messages. Used from one event loop only."""

    @property
    def peer(self) -> str:
        """A name for the logs."""

    def send(self, message: AnyMessage) -> None:
        """Queue one message without waiting. Raises `ConnectionClosedError`.

        Messages are written in the order of their sending. A peer that does not read is cut
        off once more than the transport's bound is queued: buffers never grow without end.
        """

    async def receive(self) -> AnyMessage:
        """The next message. Raises `ConnectionClosedError` at the end.

        Raises `WireError` for a frame that is no message; the connection then goes on.
        """

    async def close(self) -> None:
        """Flush what was sent (bounded in time) and close. Safe to call twice."""


Handler = Callable[[Connection], Awaitable[None]]


class Bus(Protocol):
    """Where connections come from. `serve` on the engine's side, `connect` on the others'."""

    async def serve(self, handler: Handler) -> Server:
        """Listen; `handler` runs once per connection, which is closed when it returns."""

    async def connect(self) -> Connection:
        """Raises `ConnectionError` if no engine listens there."""


class Server(Protocol):
    async def close(self) -> None:
        """Stop listening and close every connection."""
