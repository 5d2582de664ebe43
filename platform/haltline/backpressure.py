"""What Daphne lacks in front of a slow reader: a gate that waits, and a cheaper way to send.

The gate uses Twisted's public producer interface. `eager_send` writes one chunk straight to the
socket, which halves the CPU per chunk; it looks into the transport, so it can be switched off.
"""

from __future__ import annotations

import asyncio
from typing import Any

from twisted.internet.tcp import Server as TcpTransport


class Gate:
    """A push producer: shut while more waits in the transport than its high-water mark."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def passed(self, *, within: float) -> bool:
        """Wait for the reader. False if it has not read in time."""
        if self._open.is_set():
            return True
        try:
            async with asyncio.timeout(within):
                await self._open.wait()
        except TimeoutError:
            return False
        return True

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._open.clear()

    def resumeProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._open.set()

    def stopProducing(self) -> None:  # noqa: N802 - Twisted's name
        """The connection is gone: whoever waits is told elsewhere."""
        self._open.set()


def eager_send(request: Any, body: bytes) -> bool:
    """Write one chunk of a chunked response at once. False: nothing was done, send it as usual.

    Only over plain TCP, with nothing queued before it; what the socket does not take is queued.
    """
    transport = _free_transport(request)
    if transport is None or not body:
        return False
    data = b"%x\r\n%b\r\n" % (len(body), body)
    try:
        sent: int = transport.socket.send(data)
    except (BlockingIOError, InterruptedError):
        sent = 0
    except OSError:
        return False  # the usual way meets the same error, and reports it
    if sent < len(data):
        transport.write(data[sent:])
    request.sentLength += len(body)
    return True


def _free_transport(request: Any) -> Any:
    """The request's TCP transport, if its headers are out and it has nothing left to write."""
    channel = request.channel
    if channel is None or request._disconnected:
        return None
    transport = channel.transport
    if not (request.startedWriting and request.chunked and type(transport) is TcpTransport):
        return None
    busy = transport.dataBuffer or transport._tempDataBuffer or transport.disconnecting
    return transport if transport.connected and not busy else None
