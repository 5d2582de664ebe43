"""Follow one request that runs for nobody or for somebody else: from its engine, then the record.

The engine replays what it has and goes on; whatever it cannot say, because it has not got the
request yet, has forgotten it or is gone, the record says in the end. Each follower has its own
connection, whose end is all that a follower's leaving needs. Follows requests of one choice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.database import in_database
from gateway.outcomes import Outcome, outcome_of_output, outcome_of_record
from gateway.relay import Relay
from gateway.waiting import FIRST_LOOK, SLOWEST_LOOK, Pushed, pushes
from inference.bus import Connection
from inference.errors import NotFoundError, WireError
from inference.generation import Usage
from inference.lifecycle import DISPATCHED, State
from inference.wire import Attach, ChoiceOutput, Outputs, Rejected, RequestKey
from ledger.models import Choice, InferenceRequest
from ledger.push import group_of
from ledger.specs import Placement

logger = logging.getLogger(__name__)

_AT_AN_ENGINE = DISPATCHED | {State.ABORTING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is new: text, and at last how it ended. `has_output`: something was generated."""

    text: str = ""
    has_output: bool = False
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the record says now. `text` is there once it has ended, with the `outcome`."""

    state: State
    key: RequestKey
    placement: Placement
    text: str = ""
    outcome: Outcome | None = None


def standing_read(request_id: str) -> Standing:
    """Raises `NotFoundError` if there is no record any more. In a database thread."""
    row = InferenceRequest.objects.defer("prompt", "params").filter(pk=request_id).first()
    if row is None:
        raise NotFoundError("The record of this request is gone.")
    choice = None if row.is_live else Choice.objects.get(request=row, index=0)
    return Standing(
        state=State(row.state),
        key=RequestKey(row.pk, row.generation),
        placement=Placement(replica=row.replica, epoch=row.epoch, web=row.web),
        text=choice.text if choice is not None else "",
        outcome=outcome_of_record(row, choice) if choice is not None else None,
    )


async def follow(request_id: str, *, relay: Relay) -> AsyncGenerator[Told, None]:
    """All that it generates, from its beginning, and how it ends; or up to this process's drain.

    Raises `NotFoundError` if its record is removed meanwhile.
    """
    told, pause = 0, FIRST_LOOK
    async with pushes(group_of("request", request_id)) as pushed:
        while not relay.draining:
            standing = await in_database(standing_read, request_id)
            if standing.outcome is not None:
                yield Told(text=standing.text[told:], outcome=standing.outcome)
                return
            if standing.state in _AT_AN_ENGINE:
                async with _heard(standing, relay=relay, pushed=pushed) as heard:
                    async for news in heard.news(skip=told):
                        told += len(news.text)
                        pause = FIRST_LOOK
                        yield news
                        if news.outcome is not None:
                            return
            await pushed(pause)
            pause = min(pause * 2, SLOWEST_LOOK)


@dataclass(slots=True)
class _Heard:
    """What the engine has said and nobody has taken yet, and whether it may say more."""

    key: RequestKey
    is_over: bool = False
    tokens: int = 0
    last: ChoiceOutput | None = None
    _texts: list[str] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def news(self, *, skip: int) -> AsyncIterator[Told]:
        """From the first character after `skip`; ends with an outcome, or without one."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            is_over, last = self.is_over, self.last
            text, self._texts = "".join(self._texts), []
            skip, text = max(0, skip - len(text)), text[skip:]
            if text or self.tokens or last is not None:
                outcome = outcome_of_output(last, self._counted) if last is not None else None
                yield Told(text=text, has_output=bool(self.tokens), outcome=outcome)
            if is_over or last is not None:
                return

    @property
    def _counted(self) -> Usage:
        return Usage(output_tokens=self.tokens)

    def put(self, output: ChoiceOutput) -> None:
        if output.key != self.key or output.index != 0 or self.last is not None:
            return
        self._texts.append(output.text)
        self.tokens += len(output.token_ids)
        if output.finish_reason is not None:
            self.last = output
        self._arrived.set()

    def end(self) -> None:
        """Nothing more will come from here."""
        self.is_over = True
        self._arrived.set()


@asynccontextmanager
async def _heard(standing: Standing, *, relay: Relay, pushed: Pushed) -> AsyncIterator[_Heard]:
    """Ends by itself when the engine has nothing more to say, or the record has the end."""
    heard = _Heard(standing.key)
    tasks = [
        asyncio.create_task(_listen(standing, heard, relay=relay)),
        asyncio.create_task(_watch(standing.key.request_id, heard, relay=relay, pushed=pushed)),
    ]
    try:
        yield heard
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(standing: Standing, heard: _Heard, *, relay: Relay) -> None:
    link = relay.link_to(standing.placement)
    try:
        if link is None:
            return
        async with link.visit(standing.placement) as connection:
            connection.send(Attach(key=standing.key))
            while not await _take(connection, heard):
                pass
    except (ConnectionError, WireError) as problem:
        logger.debug("%s cannot be followed there: %s", standing.key.request_id, problem)
    finally:
        heard.end()


async def _take(connection: Connection, heard: _Heard) -> bool:
    """One message. Whether it was the last that is worth waiting for."""
    try:
        message = await connection.receive()
    except WireError as problem:
        logger.warning("%s sent no message: %s", connection.peer, problem)
        return False
    if isinstance(message, Outputs):
        for output in message.items:
            heard.put(output)
    return heard.last is not None or (isinstance(message, Rejected) and message.key == heard.key)


async def _watch(request_id: str, heard: _Heard, *, relay: Relay, pushed: Pushed) -> None:
    """Not every end is told to followers: the record has them all."""
    try:
        pause = FIRST_LOOK
        while not relay.draining:
            await pushed(pause)
            pause = min(pause * 2, SLOWEST_LOOK)
            standing = await in_database(standing_read, request_id)
            if standing.outcome is not None:
                return
    finally:
        heard.end()
