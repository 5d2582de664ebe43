"""Ends that no engine announced: a push says when to look at the record, and silence does too.

The ledger pushes to this process's group what ended without its engine's word. Pushes may be
lost, so the rows of requests that have been silent are read again, all in one query, and a lost
push costs no more than that. What is told is what the record holds.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from channels.layers import get_channel_layer

from gateway.line import LineTimes
from gateway.mailbox import Mailbox
from gateway.record import Record
from inference.generation import AbortCause
from ledger.ends import RequestEnd
from ledger.push import web_group_of

logger = logging.getLogger(__name__)

# In one query; above that, those come first that have waited longest for a look.
LOOK_AT_ONCE = 1000
TELL_AT_ONCE = 100
LONGEST_PAUSE = 5.0


class Ends:
    """`mailboxes()`: those of all waiting requests; `find(id)`: that of one."""

    def __init__(
        self,
        *,
        web: str,
        mailboxes: Callable[[], list[Mailbox]],
        find: Callable[[str], Mailbox | None],
        record: Record,
        times: LineTimes,
    ) -> None:
        self._group = web_group_of(web)
        self._mailboxes, self._find, self._record = mailboxes, find, record
        # A look in time is one that begins before the silence is over.
        self._silent, self._tick = times.silent * 0.75, times.silent / 4

    async def tell(self, mailboxes: Sequence[Mailbox]) -> set[str]:
        """Give each what the record holds of its end; the ids of those that got it.

        Not of those whose output would not be whole: that is still on its way, or lost.
        """
        waiting = {mailbox.key.request_id: mailbox for mailbox in mailboxes}
        ids = list(waiting)
        told: set[str] = set()
        for start in range(0, len(ids), TELL_AT_ONCE):
            for end in await self._record.ends(ids[start : start + TELL_AT_ONCE]):
                if _deliver(waiting[end.request_id], end):
                    told.add(end.request_id)
        return told

    # -- pushes

    async def listen(self) -> None:
        """Until cancelled. While there is no broker, looking has to do."""
        pause = self._tick
        while True:
            try:
                await self._listen()
            except Exception as problem:  # noqa: BLE001 - whatever the broker's client says
                level = logging.WARNING if pause < LONGEST_PAUSE else logging.DEBUG
                logger.log(level, "no pushes of ends: %s: %s", type(problem).__name__, problem)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(self) -> None:
        layer = get_channel_layer()
        channel = await layer.new_channel()
        await layer.group_add(self._group, channel)
        while True:
            await self._hear(await layer.receive(channel))

    async def _hear(self, message: dict[str, Any]) -> None:
        found = [self._find(request_id) for request_id in message["request_ids"]]
        await self._try_to_tell([mailbox for mailbox in found if mailbox is not None])

    # -- silence

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._tick)
            if silent := heapq.nsmallest(LOOK_AT_ONCE, self._silent_ones(), key=_heard_of):
                await self._look_at(silent)

    def _silent_ones(self) -> Iterator[Mailbox]:
        before = asyncio.get_running_loop().time() - self._silent
        return (one for one in self._mailboxes() if not one.ended and _heard_of(one) <= before)

    async def _look_at(self, silent: list[Mailbox]) -> None:
        now = asyncio.get_running_loop().time()
        for mailbox in silent:
            mailbox.last_look = now
        try:
            ended = set(await self._record.ended([one.key.request_id for one in silent]))
        except Exception as problem:  # noqa: BLE001 - whatever the database says: the next look
            logger.warning("no look at %d silent requests: %s", len(silent), problem)
            return
        await self._try_to_tell([one for one in silent if one.key.request_id in ended])

    async def _try_to_tell(self, mailboxes: list[Mailbox]) -> None:
        """What fails here is found again by the next look."""
        if not mailboxes:
            return
        try:
            await self.tell(mailboxes)
        except Exception:  # as above
            logger.exception("%d ends could not be told", len(mailboxes))


def _heard_of(mailbox: Mailbox) -> float:
    return max(mailbox.last_arrival, mailbox.last_look)


def _deliver(mailbox: Mailbox, end: RequestEnd) -> bool:
    """An engine that still has the request is told, too: the record is the last word."""
    if mailbox.ended or mailbox.closed:
        return True
    if not mailbox.can_end(end):
        return False
    mailbox.end(end)
    mailbox.carrier.abort(mailbox, _cause(end))
    return True


def _cause(end: RequestEnd) -> AbortCause:
    """Why an engine that still runs it should stop: of the end, or because nobody waits now."""
    blamed = next((one.abort for one in end.choices if one.abort is not None), None)
    return blamed.cause if blamed is not None else AbortCause.CLIENT_DISCONNECTED
