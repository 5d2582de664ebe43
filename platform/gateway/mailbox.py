"""Where one request's outputs wait for the response that sends them: bounded, coalescing.

Whatever arrives between two looks of the reader becomes one output per choice, so a reader that
falls behind gets fewer, larger pieces. Knows nothing of HTTP, nor of how outputs arrive.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import msgspec

from gateway.progress import ChoiceProgress
from inference.errors import HaltlineError, by_code
from inference.events import ChoiceEnd
from inference.generation import AbortCause, FinishReason, TokenLogprobs, Usage
from inference.lifecycle import State
from inference.wire import AbortInfo, Accepted, ChoiceOutput, RequestKey, Submit
from ledger.ends import RequestEnd

# Tokens that may wait unread. A reader that lets more pile up is not reading.
MOST_UNREAD_TOKENS = 16_384


class Carrier(Protocol):
    """Who has the request at the moment, and can stop it."""

    def abort(self, mailbox: Mailbox, cause: AbortCause) -> None:
        """Have this request stopped; does not wait."""

    def forget(self, mailbox: Mailbox) -> None:
        """Nobody will read this mailbox any more."""


@dataclass(slots=True, kw_only=True, eq=False)
class Mailbox:
    """One request's. Used from one event loop, with one reader.

    `submission` says which request it is; another engine may get it again, under another key.
    `accepted` resolves when an engine has taken the request, or raises the error that it gave.
    `sent_at` (None: at present no engine has it), `last_arrival` and `last_look` (at the record)
    are of the loop's clock. `stopping`: why it is to end, once somebody asked for that.
    """

    submission: Submit
    carrier: Carrier
    most_unread_tokens: int = MOST_UNREAD_TOKENS
    accepted: asyncio.Future[Accepted] = field(init=False)
    opened: bool = field(default=False, init=False)
    closed: bool = field(default=False, init=False)
    stopping: AbortCause | None = field(default=None, init=False)
    lost: HaltlineError | None = field(default=None, init=False)
    usage: Usage | None = field(default=None, init=False)
    began_at: float = field(init=False)
    sent_at: float | None = field(default=None, init=False)
    last_arrival: float = field(init=False)
    last_look: float = field(init=False)
    progress: list[ChoiceProgress] = field(init=False)
    _unread: list[ChoiceOutput] = field(default_factory=list, init=False)
    _unread_tokens: int = field(default=0, init=False)
    _live: int = field(init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.accepted = loop.create_future()
        self.began_at = self.last_arrival = self.last_look = loop.time()
        self.progress = [ChoiceProgress() for _ in range(self.choices)]
        self._live = self.choices

    @property
    def key(self) -> RequestKey:
        return self.submission.key

    @property
    def choices(self) -> int:
        return self.submission.n * len(self.submission.prompts)

    @property
    def ended(self) -> bool:
        """Every choice has ended, or the engine is lost. What came may still wait to be read."""
        return self._live == 0 or self.lost is not None

    @property
    def begun(self) -> bool:
        """Something of its output has come."""
        return any(choice.has_begun for choice in self.progress)

    @property
    def tokens(self) -> int:
        """Output tokens that have arrived, of all choices."""
        return sum(choice.tokens for choice in self.progress)

    def open(self) -> None:
        """Say that a response has begun to read."""
        self.opened = True

    async def drain(self) -> list[ChoiceOutput]:
        """All that has arrived, one output per choice; waits for something first.

        Empty only at the end: nothing more will come.
        """
        while not self._unread and not self.ended and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        outputs, self._unread, self._unread_tokens = self._unread, [], 0
        return coalesced(outputs)

    def put(self, output: ChoiceOutput) -> None:
        """Take one output. One for a choice that has ended, or that there is not, is late."""
        if self.closed or self.lost is not None or not 0 <= output.index < self.choices:
            return
        choice = self.progress[output.index]
        if choice.finish_reason is not None:
            return
        self._count(choice, output)
        self._unread.append(output)
        self._arrived.set()
        if not self.accepted.done():  # an abort may overtake the submission, and end it unqueued
            self.accepted.set_result(Accepted(key=self.key, epoch="", prompt_tokens=[]))
        if self._unread_tokens > self.most_unread_tokens and not self.ended:
            self.abort(AbortCause.SLOW_CONSUMER)

    def can_end(self, end: RequestEnd) -> bool:
        """Nothing would be missing: content that the record does not keep has arrived."""
        return all(
            choice.finish_reason is FinishReason.ERROR
            or max(len(choice.token_ids), self.progress[choice.index].tokens) >= count
            for choice, count in zip(end.choices, end.counts, strict=True)
            if choice.index < self.choices
        )

    def end(self, end: RequestEnd) -> None:
        """Take what the record holds of its end: of each choice, what has not arrived yet."""
        if self.ended:
            return
        if not self.accepted.done():
            if end.state in {State.FAILED, State.REJECTED}:
                error = by_code(end.error_code)
                self.refuse(error(end.error_message or None, request_id=end.request_id))
                return
            prompts = [end.prompt_tokens]
            self.accepted.set_result(Accepted(key=self.key, epoch="", prompt_tokens=prompts))
        for choice in end.choices:
            if choice.index < self.choices:
                self.put(self._rest(choice, end))

    def lose(self, error: HaltlineError) -> None:
        """Nothing more will come: what has arrived can still be read, then comes the end."""
        if self.ended or self.closed:
            return
        self.lost = error
        self._arrived.set()
        if not self.accepted.done():
            self.refuse(error)

    def refuse(self, error: HaltlineError) -> None:
        """The engine did not take the request: it has ended before it began."""
        self._live = 0
        self.accepted.set_exception(error)
        self.accepted.exception()  # the submitter may have left: nobody needs to look at it then

    def abort(self, cause: AbortCause) -> None:
        """Stop the request; what is said about its end still arrives here."""
        if self.stopping is None and not self.ended:
            self.stopping = cause
            self.carrier.abort(self, cause)

    def close(self, cause: AbortCause = AbortCause.CLIENT_DISCONNECTED) -> None:
        """Stop reading. A request that has not ended is aborted for `cause`. Never waits."""
        if self.closed:
            return
        self.abort(cause)
        self.closed = True
        self.carrier.forget(self)
        self._arrived.set()

    def _count(self, choice: ChoiceProgress, output: ChoiceOutput) -> None:
        choice.take(output)
        self._unread_tokens += len(output.token_ids)
        self.last_arrival = asyncio.get_running_loop().time()
        self.usage = output.usage or self.usage
        if output.finish_reason is not None:
            self._live -= 1

    def _rest(self, choice: ChoiceEnd, end: RequestEnd) -> ChoiceOutput:
        here = self.progress[choice.index]
        tokens = sum(len(one.token_ids) for one in end.choices)
        return ChoiceOutput(
            key=self.key,
            index=choice.index,
            text=choice.text[here.characters :],
            token_ids=choice.token_ids[here.tokens :],
            logprobs=choice.logprobs[here.tokens :] if choice.logprobs is not None else None,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            usage=Usage(
                prompt_tokens=end.prompt_tokens,
                output_tokens=tokens,
                cached_prompt_tokens=end.cached_prompt_tokens,
            ),
            abort=choice.abort,
            error_code=choice.error_code,
            error_message=choice.error_message,
        )


class Nobody:
    """A `Carrier` of what no engine ever hears of."""

    def abort(self, mailbox: Mailbox, cause: AbortCause) -> None:
        """It has ended."""

    def forget(self, mailbox: Mailbox) -> None:
        """Nothing is kept."""


def mailbox_aborted(submission: Submit, abort: AbortInfo) -> Mailbox:
    """Of a request that was aborted on its arrival."""
    mailbox = Mailbox(submission=submission, carrier=Nobody())
    for index in range(mailbox.choices):
        end = ChoiceOutput(
            key=mailbox.key, index=index, finish_reason=FinishReason.ABORT, abort=abort
        )
        mailbox.put(end)
    return mailbox


def coalesced(outputs: list[ChoiceOutput]) -> list[ChoiceOutput]:
    """One output per choice, in the order in which the choices first appear."""
    by_choice: dict[int, list[ChoiceOutput]] = {}
    for output in outputs:
        by_choice.setdefault(output.index, []).append(output)
    return [parts[0] if len(parts) == 1 else _merged(parts) for parts in by_choice.values()]


def _merged(parts: list[ChoiceOutput]) -> ChoiceOutput:
    first, last = parts[0], parts[-1]
    return msgspec.structs.replace(
        last,
        text="".join(part.text for part in parts),
        token_ids=list(chain.from_iterable(part.token_ids for part in parts)),
        logprobs=_merged_logprobs(parts),
        prompt_text=first.prompt_text,
        prompt_token_ids=first.prompt_token_ids,
        prompt_logprobs=first.prompt_logprobs,
    )


def _merged_logprobs(parts: list[ChoiceOutput]) -> list[TokenLogprobs] | None:
    found = [part.logprobs for part in parts if part.logprobs is not None]
    return list(chain.from_iterable(found)) if found else None
