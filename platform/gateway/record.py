"""What a relay writes to the ledger and reads there, from its event loop and with a time limit.

Each call is one hop to a database thread. One that is late raises `TimeoutError`; the thread goes
on and commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gateway.database import in_database
from inference.lifecycle import Trigger
from inference.wire import RequestKey
from ledger import services
from ledger.ends import RequestEnd, request_ends, requests_ended
from ledger.specs import Placement, Received, Step

Result = TypeVar("Result")

WITHIN = 10.0


class Record:
    """`web`: the process that acts. Give at most some hundreds of requests at once."""

    def __init__(self, web: str, *, within: float = WITHIN) -> None:
        self._actor, self._within = f"web:{web}", within

    async def requeue(self, *, replica: str, epoch: str, received: Sequence[Received]) -> set[str]:
        """Their engine is gone. Those that may be placed again, under the next generation."""
        found = in_database(
            services.requests_requeue, replica=replica, epoch=epoch, received=received
        )
        return set(await self._in_time(found))

    async def place(self, keys: Iterable[RequestKey], placement: Placement) -> set[str]:
        """Queue what was received; those for which this came before any other end."""
        fields = {"replica": placement.replica, "epoch": placement.epoch, "web": placement.web}
        return await self._advance(keys, trigger=Trigger.ENQUEUE, fields=fields)

    async def settle(
        self, keys: Iterable[RequestKey], *, trigger: Trigger, fields: Mapping[str, Any]
    ) -> set[str]:
        """End what no engine holds."""
        return await self._advance(keys, trigger=trigger, fields=fields)

    async def ended(self, request_ids: Sequence[str]) -> list[str]:
        """Which of these have ended, in one query."""
        return await self._in_time(in_database(requests_ended, request_ids=request_ids))

    async def ends(self, request_ids: Sequence[str]) -> list[RequestEnd]:
        """How those of these that have ended did."""
        return await self._in_time(in_database(request_ends, request_ids=request_ids))

    async def _advance(
        self, keys: Iterable[RequestKey], *, trigger: Trigger, fields: Mapping[str, Any]
    ) -> set[str]:
        step = Step(trigger=trigger, actor=self._actor, fields=fields)
        pairs = [(key.request_id, key.generation) for key in keys]
        found = in_database(services.requests_advance, keys=pairs, step=step)
        return set(await self._in_time(found))

    async def _in_time(self, work: Awaitable[Result]) -> Result:
        async with asyncio.timeout(self._within):
            return await work
