"""Wait, in the event loop and without a thread, until the record says so or time is up.

A push says when to look; where pushes do not arrive, looking again now and then is enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from channels.layers import get_channel_layer

logger = logging.getLogger(__name__)

FIRST_LOOK = 0.05
SLOWEST_LOOK = 1.0

Look = Callable[[], Awaitable[bool]]
Pushed = Callable[[float], Awaitable[Any]]


async def settled(group: str, look: Look, *, seconds: float) -> bool:
    """True as soon as `look` says so, False after `seconds`. `group`: whose pushes tell of it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = FIRST_LOOK
    async with pushes(group) as pushed:
        while not await look():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await pushed(min(pause, left))
            pause = min(pause * 2, SLOWEST_LOOK)
    return True


@asynccontextmanager
async def pushes(group: str) -> AsyncIterator[Pushed]:
    """Gives `pushed(timeout)`, which returns at a push or after the time, whichever is first."""
    layer = get_channel_layer()
    try:
        channel = await layer.new_channel()
        await layer.group_add(group, channel)
    except Exception as problem:  # noqa: BLE001 - whatever the broker's client says: look without it
        logger.warning("no pushes for %s: %s", group, problem)
        yield asyncio.sleep
        return
    inbox = _Inbox(layer, group, channel)
    try:
        yield inbox.wait
    finally:
        await inbox.close()


class _Inbox:
    """One pending receive, kept across looks: cancelling it ends the layer's subscription."""

    def __init__(self, layer: Any, group: str, channel: str) -> None:
        self._layer, self._group, self._channel = layer, group, channel
        self._receiving: asyncio.Task[Any] | None = None

    async def wait(self, seconds: float) -> None:
        receiving = self._receive()
        done, _ = await asyncio.wait({receiving}, timeout=seconds)
        if not done:
            return
        self._receiving = None
        if receiving.exception() is not None:
            logger.warning("pushes for %s ended: %s", self._group, receiving.exception())
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Messages that came meanwhile are taken first: only a waiting receive unsubscribes."""
        await self._layer.group_discard(self._group, self._channel)
        while True:
            receiving, self._receiving = self._receive(), None
            await asyncio.wait({receiving}, timeout=0)
            receiving.cancel()
            await asyncio.wait({receiving})
            if receiving.cancelled() or receiving.exception() is not None:
                return

    def _receive(self) -> asyncio.Task[Any]:
        if self._receiving is None:
            self._receiving = asyncio.create_task(self._layer.receive(self._channel))
        return self._receiving
