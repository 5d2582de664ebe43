"""The bus over sockets: asyncio streams that carry length-prefixed msgpack frames.

A frame is a 4-byte big-endian length and that many bytes, one message of `inference.wire`.
Three kinds of address: `unix:/path` (the default: the file system says who may connect),
`tcp://host:port`, and `tls://host:port?cert=…&key=…&ca=…` across hosts. It knows what a message
weighs and nothing of what it means; who may talk is settled in `inference.bus.handshake`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Awaitable, Callable

from inference.bus import Connection, ConnectionClosedError, Handler
from inference.bus.address import Address, TcpAddress, UnixAddress, parse
from inference.bus.listening import bind_unix, keep_alive, remove_unix
from inference.errors import WireError
from inference.wire import MAX_FRAME_BYTES, AnyMessage, decode, encode

logger = logging.getLogger(__name__)

# A peer that leaves this much unread is cut off.
WRITE_LIMIT_BYTES = 32 * 1024 * 1024
# The first frame comes from someone who has not yet said who they are.
FIRST_FRAME_BYTES = 64 * 1024
FLUSH_SECONDS = 2.0
CONNECT_SECONDS = 5.0
READ_AHEAD_BYTES = 1024 * 1024

_length = struct.Struct(">I")


class SocketConnection:
    """One end of a socket. `limit`: bytes that may wait unread by the peer."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        peer: str,
        limit: int = WRITE_LIMIT_BYTES,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._peer, self._limit = peer, limit
        self._next_length: int | None = None
        self._frame_bound = FIRST_FRAME_BYTES
        self._closed = False

    @property
    def peer(self) -> str:
        return self._peer

    def send(self, message: AnyMessage) -> None:
        """Raises `WireError` for a message that no frame can hold; nothing is sent then."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue bytes as one frame, as they are."""
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"a message of {len(frame)} bytes is longer than a frame may be")
        transport = self._writer.transport
        if self._closed or transport.is_closing():
            raise ConnectionClosedError(f"{self._peer} is gone")
        if transport.get_write_buffer_size() > self._limit:
            self._cut(f"it left more than {self._limit} bytes unread")
        self._writer.write(_length.pack(len(frame)) + frame)

    async def receive(self) -> AnyMessage:
        try:
            frame = await self._read_frame()
        except (asyncio.IncompleteReadError, OSError) as end:
            self._closed = True
            raise ConnectionClosedError(f"{self._peer} is gone") from end
        return decode(frame)

    async def close(self) -> None:
        self._closed = True
        self._writer.close()
        with contextlib.suppress(OSError):  # the peer went first: closed is what was asked for
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._writer.wait_closed()
            except TimeoutError:
                logger.warning("bus: %s did not read its last messages", self._peer)
                self._writer.transport.abort()

    async def _read_frame(self) -> bytes:
        """The length survives a cancellation between it and the frame: nothing is skipped."""
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self._peer} is closed")
        if self._next_length is None:
            (length,) = _length.unpack(await self._reader.readexactly(_length.size))
            if length > self._frame_bound:
                self._cut(f"it announced a frame of {length} bytes")
            self._next_length = length
        frame = await self._reader.readexactly(self._next_length)
        self._next_length, self._frame_bound = None, MAX_FRAME_BYTES
        return frame

    def _cut(self, why: str) -> None:
        logger.warning("bus: %s was cut off: %s", self._peer, why)
        self._closed = True
        self._writer.transport.abort()
        raise ConnectionClosedError(f"{self._peer} was cut off: {why}")


class SocketServer:
    """Listens, and holds the connections that are open."""

    def __init__(self, handler: Handler, *, address: Address, limit: int) -> None:
        self._handler, self._address, self._limit = handler, address, limit
        self._tasks: dict[asyncio.Task[None], SocketConnection] = {}
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._count = 0

    @property
    def url(self) -> str:
        """Where it listens, with the port that the system chose if it was asked to."""
        if isinstance(self._address, UnixAddress) or self._server is None:
            return self._address.url
        return self._address.with_port(self._server.sockets[0].getsockname()[1]).url

    async def start(self) -> None:
        if isinstance(self._address, UnixAddress):
            listener, self._inode = bind_unix(self._address.path)
            self._server = await asyncio.start_unix_server(
                self._on_connect, sock=listener, limit=READ_AHEAD_BYTES
            )
        else:
            self._server = await asyncio.start_server(
                self._on_connect,
                self._address.host,
                self._address.port,
                limit=READ_AHEAD_BYTES,
                ssl=self._address.server_context(),
            )

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        if isinstance(self._address, UnixAddress):
            remove_unix(self._address.path, inode=self._inode)
        await asyncio.gather(*(connection.close() for connection in self._tasks.values()))
        await _finish(list(self._tasks))

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        keep_alive(writer)
        name = f"{writer.get_extra_info('peername') or 'unix'}#{self._count}"
        connection = SocketConnection(reader, writer, peer=name, limit=self._limit)
        task = asyncio.create_task(run_handler(self._handler, connection), name=f"bus {name}")
        self._tasks[task] = connection
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


class SocketBus:
    """Connections at one address. `unread_limit`: see `SocketConnection.limit`.

    Raises `ValueError` for an address that is none.
    """

    def __init__(self, url: str, *, unread_limit: int = WRITE_LIMIT_BYTES) -> None:
        self._address = parse(url)
        self._limit = unread_limit

    async def serve(self, handler: Handler) -> SocketServer:
        """Raises `OSError` if the address is taken or not allowed."""
        server = SocketServer(handler, address=self._address, limit=self._limit)
        await server.start()
        return server

    async def connect(self) -> SocketConnection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._open()
        except OSError as problem:  # TimeoutError is one
            raise ConnectionError(
                f"no engine answers at {self._address.url}: {problem}"
            ) from problem
        keep_alive(writer)
        return SocketConnection(reader, writer, peer=self._address.url, limit=self._limit)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address: UnixAddress | TcpAddress = self._address
        if isinstance(address, UnixAddress):
            return await asyncio.open_unix_connection(address.path, limit=READ_AHEAD_BYTES)
        return await asyncio.open_connection(
            address.host, address.port, limit=READ_AHEAD_BYTES, ssl=address.client_context()
        )


async def run_handler(
    handler: Callable[[Connection], Awaitable[None]], connection: Connection
) -> None:
    """One connection from its first message to its end, whatever the handler does."""
    try:
        await handler(connection)
    except ConnectionClosedError:
        logger.debug("bus: %s left", connection.peer)
    except Exception:  # one connection's fault must not end the others'
        logger.exception("bus: the handler of %s failed", connection.peer)
    finally:
        await connection.close()


async def _finish(tasks: list[asyncio.Task[None]]) -> None:
    """Their connections are closed, so they end by themselves; the slow ones are cancelled."""
    if not tasks:
        return
    _, slow = await asyncio.wait(tasks, timeout=FLUSH_SECONDS)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
