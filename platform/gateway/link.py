"""What one web process has to say to one engine: submit, abort, ask; outputs go to mailboxes.

A single reader deals each step's outputs out to the mailboxes of the waiting responses. A break
of the line hands those that have not ended to `on_loss`. Knows nothing of HTTP and no rows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from gateway.acceptance import SILENT
from gateway.background import spawn
from gateway.line import Line, LineTimes
from gateway.mailbox import Mailbox
from inference.bus import Bus, Connection
from inference.bus.client import connected
from inference.errors import UnavailableError, WireError, by_code
from inference.generation import AbortCause
from inference.wire import (
    Abort,
    AbortInfo,
    Accepted,
    AnyMessage,
    Ask,
    CallFailed,
    Detokenize,
    Outputs,
    Prompt,
    Rejected,
    RequestKey,
    Status,
    Text,
    Tokenize,
    Tokens,
    Welcome,
)
from ledger.specs import Placement

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", Tokens, Text, Status)
OnLoss = Callable[[Welcome, list[Mailbox]], Awaitable[None]]


class Link:
    """One engine, as this process sees it.

    `on_up()` is called when it is there; `on_loss(welcome, mailboxes)` is awaited after a break
    that took work with it. `welcome` is the newest one, also while the line is down;
    `model_since`: when its model was first seen here, in seconds since the epoch.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        name: str,
        secret: str,
        on_up: Callable[[], None],
        on_loss: OnLoss,
        times: LineTimes,
    ) -> None:
        self._times, self._bus, self._secret = times, bus, secret
        self.line = Line(bus, name=name, secret=secret, times=self._times, listener=self)
        self.welcome: Welcome | None = None
        self.model_since = 0
        self.status: Status | None = None
        self._name, self._on_up, self._on_loss = name, on_up, on_loss
        self._mailboxes: dict[str, Mailbox] = {}
        self._calls: dict[int, asyncio.Future[Tokens | Text | Status]] = {}
        self._call_numbers = count(1)

    @property
    def mailboxes(self) -> list[Mailbox]:
        """Those of requests that somebody waits for."""
        return list(self._mailboxes.values())

    # -- what it is, by what it last said

    def is_at(self, placement: Placement) -> bool:
        """The very engine, of the same start."""
        welcome = self.welcome
        return (
            welcome is not None
            and welcome.replica == placement.replica
            and welcome.epoch == placement.epoch
        )

    def serves(self, model: str | None) -> bool:
        """Can take work for `model`, or for any."""
        return (
            self.welcome is not None
            and (model is None or self.welcome.model == model)
            and self.line.up
            and not self.line.hung
        )

    @property
    def load(self) -> tuple[float, int]:
        """Share of the slots that are taken or waited for, then what we ourselves have there."""
        status = self.status
        asked = (status.running + status.waiting) / max(1, status.total_slots) if status else 0.0
        return asked, len(self._mailboxes)

    @property
    def problem(self) -> str:
        """Empty while all is well."""
        name = self.welcome.replica if self.welcome else "an engine"
        if not self.line.up:
            return f"{name} is not connected"
        return f"{name} does not answer" if self.line.hung else ""

    @asynccontextmanager
    async def visit(self, placement: Placement) -> AsyncIterator[Connection]:
        """A connection of one's own to this engine, closed at the end; nothing hangs on it.

        Raises `ConnectionError` if that engine is not there any more.
        """
        async with connected(self._bus, secret=self._secret, client=self._name) as (line, welcome):
            if welcome.epoch != placement.epoch:
                raise ConnectionError(f"{welcome.replica} was started anew")
            yield line

    # -- requests

    def carry(self, mailbox: Mailbox) -> bool:
        """Send its submission and take its outputs. False, and nothing done, while it is down."""
        try:
            self.line.send(mailbox.submission)
        except UnavailableError:
            return False
        mailbox.sent_at = asyncio.get_running_loop().time()
        mailbox.carrier = self
        self._mailboxes[mailbox.key.request_id] = mailbox
        return True

    def find(self, request_id: str) -> Mailbox | None:
        return self._mailboxes.get(request_id)

    def abort_keys(self, keys: list[RequestKey], info: AbortInfo) -> None:
        """Ask the engine to stop these. A line that is down has ended what was on it anyway."""
        try:
            self.line.send(Abort(keys=keys, info=info))
        except UnavailableError:
            logger.debug("%s: down, so %d aborts were not sent", self._name, len(keys))

    def abort(self, mailbox: Mailbox, cause: AbortCause) -> None:
        self.abort_keys([mailbox.key], AbortInfo(cause=cause))

    def forget(self, mailbox: Mailbox) -> None:
        if self._mailboxes.get(mailbox.key.request_id) is mailbox:
            del self._mailboxes[mailbox.key.request_id]

    # -- questions; all raise the error that the engine names, or `UnavailableError`

    async def ask(self) -> Status:
        return await self._call(Ask(call=next(self._call_numbers)), Status)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> Tokens:
        number = next(self._call_numbers)
        question = Tokenize(call=number, prompt=prompt, add_special_tokens=add_special_tokens)
        return await self._call(question, Tokens)

    async def detokenize(self, token_ids: list[int]) -> Text:
        question = Detokenize(call=next(self._call_numbers), token_ids=token_ids)
        return await self._call(question, Text)

    async def _call(self, question: Ask | Tokenize | Detokenize, kind: type[Answer]) -> Answer:
        future: asyncio.Future[Tokens | Text | Status]
        future = asyncio.get_running_loop().create_future()
        self._calls[question.call] = future
        try:
            self.line.send(question)
            async with asyncio.timeout(self._times.call):
                answer = await future
        except TimeoutError:
            raise UnavailableError(SILENT) from None
        finally:
            self._calls.pop(question.call, None)
        if not isinstance(answer, kind):
            raise WireError(f"{self._name}: the answer is a {type(answer).__name__}")
        return answer

    # -- what the line reports

    def line_up(self, welcome: Welcome) -> None:
        if self.welcome is None or self.welcome.model != welcome.model:
            self.model_since = int(time.time())
        self.welcome = welcome
        logger.info("%s: connected to replica %s", self._name, welcome.replica)
        self._on_up()

    def line_tick(self) -> None:
        spawn(self._ask_status(), name=f"{self._name} status")

    def line_message(self, message: AnyMessage) -> None:
        if isinstance(message, Outputs):
            for output in message.items:
                mailbox = self._waiting(output.key)
                if mailbox is not None:
                    mailbox.put(output)
        elif isinstance(message, Accepted | Rejected):
            self._take_verdict(message)
        elif isinstance(message, Tokens | Text | Status | CallFailed):
            self._take_answer(message)

    async def line_down(self, welcome: Welcome) -> None:
        self.status = None
        lost = [mailbox for mailbox in self._mailboxes.values() if not mailbox.ended]
        self._mailboxes.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(UnavailableError())
        if lost:
            logger.error("%s: %d requests lost with their engine", self._name, len(lost))
            await self._on_loss(welcome, lost)

    def _waiting(self, key: RequestKey) -> Mailbox | None:
        """What an engine says of another generation is not for the one that waits now."""
        mailbox = self._mailboxes.get(key.request_id)
        return mailbox if mailbox is not None and mailbox.key == key else None

    async def _ask_status(self) -> None:
        try:
            self.status = await self.ask()
        except UnavailableError as problem:
            logger.debug("%s: no status: %s", self._name, problem)

    def _take_verdict(self, verdict: Accepted | Rejected) -> None:
        mailbox = self._waiting(verdict.key)
        if mailbox is None:
            return
        if isinstance(verdict, Accepted):
            if not mailbox.accepted.done():
                mailbox.accepted.set_result(verdict)
            return
        # After another engine had taken it before, this is the end of a response that has begun.
        mailbox.lose(
            by_code(verdict.code)(
                verdict.message,
                param=verdict.param,
                retry_after=verdict.retry_after,
                request_id=verdict.key.request_id,
            )
        )

    def _take_answer(self, answer: Tokens | Text | Status | CallFailed) -> None:
        future = self._calls.get(answer.call)
        if future is None or future.done():
            return
        if isinstance(answer, CallFailed):
            future.set_exception(by_code(answer.code)(answer.message))
        else:
            future.set_result(answer)
