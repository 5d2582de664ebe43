"""What one web process has to say to one engine: submit, abort, ask; outputs go to mailboxes.

A single reader deals each step's outputs out to the mailboxes of the waiting responses. A break
of the line ends every mailbox on it with `EngineLostError`, and `on_loss` is told what had
arrived. Knows nothing of HTTP and writes no rows itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from gateway.background import spawn
from gateway.line import Line, LineTimes
from gateway.mailbox import Mailbox
from inference.bus import Bus
from inference.errors import EngineLostError, UnavailableError, WireError, by_code
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
    Submit,
    Text,
    Tokenize,
    Tokens,
    Welcome,
)

logger = logging.getLogger(__name__)

SILENT = "The engine did not answer in time; try again later."

Answer = TypeVar("Answer", Tokens, Text, Status)
OnLoss = Callable[[Welcome, dict[str, int]], Awaitable[None]]


class NotSubmittedError(UnavailableError):
    """The engine that was to run this request has just gone; try again later."""


class Link:
    """One engine, as this process sees it.

    `on_loss(welcome, received)` is awaited after a break that took work with it: the tokens that
    had arrived, per request id. `welcome` is the newest one, also while the line is down;
    `model_since`: when its model was first seen here, in seconds since the epoch.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        name: str,
        secret: str,
        on_loss: OnLoss,
        times: LineTimes | None = None,
    ) -> None:
        self._times = times or LineTimes()
        self.line = Line(bus, name=name, secret=secret, times=self._times, listener=self)
        self.welcome: Welcome | None = None
        self.model_since = 0
        self.status: Status | None = None
        self._name, self._on_loss = name, on_loss
        self._mailboxes: dict[RequestKey, Mailbox] = {}
        self._calls: dict[int, asyncio.Future[Tokens | Text | Status]] = {}
        self._call_numbers = count(1)

    @property
    def mailboxes(self) -> list[Mailbox]:
        """Those of requests that somebody waits for."""
        return list(self._mailboxes.values())

    # -- requests

    async def submit(self, submission: Submit) -> Mailbox:
        """Send it and wait for the engine's word.

        Raises the error that the engine names, `NotSubmittedError` if it could not be sent,
        `EngineLostError` if the engine goes meanwhile, `UnavailableError` without an answer in
        time. A cancellation aborts the request.
        """
        mailbox = Mailbox(
            key=submission.key, choices=submission.n * len(submission.prompts), carrier=self
        )
        try:
            self.line.send(submission)
        except UnavailableError:
            raise NotSubmittedError from None
        self._mailboxes[mailbox.key] = mailbox
        try:
            async with asyncio.timeout(self._times.accept):
                await asyncio.shield(mailbox.accepted)
        except TimeoutError:
            mailbox.close(AbortCause.DEADLINE)
            raise UnavailableError(SILENT, request_id=mailbox.key.request_id) from None
        except BaseException:
            mailbox.close()
            raise
        self._expect_reader(mailbox)
        return mailbox

    def abort_keys(self, keys: list[RequestKey], info: AbortInfo) -> None:
        """Ask the engine to stop these. A line that is down has ended what was on it anyway."""
        try:
            self.line.send(Abort(keys=keys, info=info))
        except UnavailableError:
            logger.debug("%s: down, so %d aborts were not sent", self._name, len(keys))

    def abort(self, mailbox: Mailbox, cause: AbortCause) -> None:
        self.abort_keys([mailbox.key], AbortInfo(cause=cause))

    def forget(self, mailbox: Mailbox) -> None:
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]

    def _expect_reader(self, mailbox: Mailbox) -> None:
        """A response whose client left before its first byte is never run: nobody reads then."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._times.unopened

        def look() -> None:
            if mailbox.opened or mailbox.closed:
                return
            if loop.time() - due > self._times.unopened / 2:
                self._expect_reader(mailbox)  # the loop had stalled: the reader may be late too
            else:
                mailbox.close()

        loop.call_at(due, look)

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

    def line_tick(self) -> None:
        spawn(self._ask_status(), name=f"{self._name} status")

    def line_message(self, message: AnyMessage) -> None:
        if isinstance(message, Outputs):
            for output in message.items:
                mailbox = self._mailboxes.get(output.key)
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
        for mailbox in lost:
            mailbox.lose(EngineLostError(request_id=mailbox.key.request_id))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(UnavailableError())
        if lost:
            logger.error("%s: %d requests lost with their engine", self._name, len(lost))
            await self._on_loss(welcome, {box.key.request_id: box.tokens for box in lost})

    async def _ask_status(self) -> None:
        try:
            self.status = await self.ask()
        except UnavailableError as problem:
            logger.debug("%s: no status: %s", self._name, problem)

    def _take_verdict(self, verdict: Accepted | Rejected) -> None:
        mailbox = self._mailboxes.get(verdict.key)
        if mailbox is None or mailbox.accepted.done():
            return
        if isinstance(verdict, Accepted):
            mailbox.accepted.set_result(verdict)
            return
        error = by_code(verdict.code)
        mailbox.refuse(
            error(
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
