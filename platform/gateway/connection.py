"""What the ASGI server tells a response about its client: `slow` once it stopped reading.

The server puts a `ClientConnection` into the scope's extensions; without one (another server, a
test client) nothing is known, and a client that leaves has simply left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.generation import AbortCause

EXTENSION = "haltline.connection"


class ClientConnection:
    """`slow`: the client left its data unread for the server's send timeout and was cut off."""

    __slots__ = ("slow",)

    def __init__(self) -> None:
        self.slow = False

    @property
    def cause_of_end(self) -> AbortCause:
        return AbortCause.SLOW_CONSUMER if self.slow else AbortCause.CLIENT_DISCONNECTED


def connection_of(scope: Mapping[str, Any]) -> ClientConnection:
    found = (scope.get("extensions") or {}).get(EXTENSION)
    return found if isinstance(found, ClientConnection) else ClientConnection()
