"""The worker's side of the bus: greets connections, turns messages into commands, sends answers.

It runs in the event loop, decides nothing about requests, and never waits for the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.bus import Connection, ConnectionClosedError
from inference.bus.handshake import welcome
from inference.errors import WireError
from inference.wire import (
    Abort,
    AnyMessage,
    Ask,
    Attach,
    Detokenize,
    Submit,
    Tokenize,
    Welcome,
)
from inference.worker.commands import (
    AbortAsked,
    Arrive,
    AttachAsked,
    Inbox,
    SessionEnded,
    StatusAsked,
    Submission,
)
from inference.worker.outbox import Delivery
from inference.worker.registry import Counts
from inference.worker.session import Session
from inference.worker.tokenizing import TokenizerThread

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Front:
    """`handle` is the bus's handler. Answers go out by `Mail`."""

    greeting: Welcome
    secret: str
    inbox: Inbox
    tokenizer: TokenizerThread
    counts: Counts
    clock: Callable[[], float]
    sessions: set[Session] = field(default_factory=set)

    async def handle(self, connection: Connection) -> None:
        """One connection, from its greeting to its end, which aborts what is attached to it."""
        hello = await welcome(connection, answer=self.greeting, secret=self.secret)
        session = Session(connection, hello.client)
        self.sessions.add(session)
        logger.info("%s connected", session.client)
        try:
            await self._read(session)
        except ConnectionClosedError:
            logger.info("%s left", session.client)
        finally:
            session.is_open = False
            self.sessions.discard(session)
            self.inbox.put(SessionEnded(session))

    async def _read(self, session: Session) -> None:
        while True:
            try:
                self._take(session, await session.connection.receive())
            except WireError as problem:
                self.counts.malformed += 1
                logger.warning("%s sent a malformed message: %s", session.client, problem)

    def _take(self, session: Session, message: AnyMessage) -> None:
        match message:
            case Submit():
                submission = Submission(message, session, self.clock())
                self.inbox.put(Arrive(submission))
                self.tokenizer.put(submission)
            case Abort(keys=keys, info=info):
                self.inbox.put(AbortAsked(session, keys, info, self.clock()))
            case Attach(key=key, from_token=from_token):
                self.inbox.put(AttachAsked(session, key, from_token))
            case Tokenize() | Detokenize():
                self.tokenizer.put((session, message))
            case Ask(call=call):
                self.inbox.put(StatusAsked(session, call))
            case _:
                raise WireError(f"{type(message).__name__} is not for an engine")


class Mail:
    """Carries messages from any thread to the connections, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closing: set[asyncio.Task[None]] = set()

    def deliver(self, deliveries: list[Delivery]) -> None:
        """From any thread; does not wait."""
        self._loop.call_soon_threadsafe(self._send, deliveries)

    def _send(self, deliveries: list[Delivery]) -> None:
        for session, message in deliveries:
            if not session.is_open:
                continue
            try:
                session.connection.send(message)
            except ConnectionClosedError:
                session.is_open = False  # its reader ends by the same cause, and tells the engine
            except WireError as problem:
                logger.error("%s cannot be told: %s", session.client, problem)
                self._hang_up(session)

    def _hang_up(self, session: Session) -> None:
        """Half a stream is worse than none: the end of the connection tells both sides."""
        session.is_open = False
        task = self._loop.create_task(session.connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
