"""One greeted connection, as the engine's thread knows it: something that messages go to."""

from __future__ import annotations

from dataclasses import dataclass

from inference.bus import Connection


@dataclass(slots=True, eq=False)
class Session:
    """`client`: the name from its greeting. The connection is the bus loop's to use."""

    connection: Connection
    client: str
    is_open: bool = True
