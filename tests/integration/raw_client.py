"""A client of raw sockets: it asks for a completion, and leaves as rudely as a test wants."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from tests.integration.gateway_server import MODEL, WebServer

Leave = Callable[[socket.socket], None]


def ask(server: WebServer, *, receive_buffer: int = 0, **fields: Any) -> socket.socket:
    """A socket on which a completion was asked for; nothing of the answer is read."""
    found = socket.socket()
    if receive_buffer:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    found.connect(("127.0.0.1", server.port))
    found.sendall(request_of(server, **fields))
    return found


def request_of(server: WebServer, **fields: Any) -> bytes:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 15_000, **fields}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {server.key()}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def finish(client: socket.socket) -> None:
    """Leave with FIN."""
    client.close()


def reset(client: socket.socket) -> None:
    """Leave with RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
