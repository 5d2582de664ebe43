"""The one finalizer: every end of every choice, whatever its cause, is made here.

An end is told three times, always with the same numbers: to the waiting connection, to the
ledger, and to the registry, which forgets the request when its last choice has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from inference.engine.engine import Engine, SequenceEnd
from inference.errors import HaltlineError
from inference.generation import FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, Accepted, Rejected
from inference.worker.outbox import Outbox
from inference.worker.registry import Registry
from inference.worker.request import Choice, Request, Stage
from inference.worker.telling import tell


class Finalizer:
    def __init__(
        self, *, engine: Engine, registry: Registry, outbox: Outbox, clock: Callable[[], float]
    ) -> None:
        self._engine, self._registry = engine, registry
        self._outbox, self._clock = outbox, clock

    def abort(self, requests: Iterable[Request], info: AbortInfo) -> None:
        """Slots and blocks of all of them are free before anybody is told."""
        live = [request for request in requests if not request.is_ended]
        ends = self._release(live)
        for request in live:
            request.abort = info
            self._end_all(request, ends, FinishReason.ABORT)

    def expire(self, request: Request) -> None:
        """It waited too long and was never started."""
        self._end_all(request, self._release([request]), FinishReason.EXPIRED)

    def fail(self, requests: Iterable[Request], error: HaltlineError) -> None:
        """The engine itself is broken, so it is asked for what it has, but not relied on."""
        for request in list(requests):
            ends: dict[int | None, SequenceEnd] = {}
            with contextlib.suppress(Exception):  # what the worker has got is told in any case
                ends = self._release([request])
            for choice in request.live_choices:
                choice.error_code, choice.error_message = error.code, error.message
            self._end_all(request, ends, FinishReason.ERROR)

    def reject(self, request: Request, error: HaltlineError) -> None:
        """It never came into the queue; none of its choices has an end of its own."""
        request.log(
            self._clock(),
            trigger=Trigger.REJECT,
            detail={"code": error.code, "message": error.message},
        )
        self._outbox.send(request.submitter, self._rejection(request, error))
        self._retire(request)

    def finish(self, request: Request, choice: Choice, reason: FinishReason) -> None:
        """One choice ends as `reason` says; what it produced has been taken already."""
        request.end_choice(choice, reason)
        self._registry.retire_choice(choice)
        is_last = request.num_live == 0
        request.log(
            self._clock(),
            trigger=request.end_trigger if is_last else None,
            choice_end=request.choice_end(choice),
        )
        self._outbox.changed(request)
        if is_last:
            self._retire(request)

    def _release(self, requests: list[Request]) -> dict[int | None, SequenceEnd]:
        ids = [
            choice.seq_id
            for request in requests
            for choice in request.live_choices
            if choice.seq_id is not None
        ]
        return {end.seq_id: end for end in self._engine.abort(ids)}

    def _end_all(
        self, request: Request, ends: dict[int | None, SequenceEnd], reason: FinishReason
    ) -> None:
        accept(request, self._outbox)
        audience = request.audience
        live = request.live_choices
        sent = [len(choice.token_ids) for choice in live]
        texts = [self._take_rest(choice, ends.get(choice.seq_id)) for choice in live]
        for choice, from_token, text in zip(live, sent, texts, strict=True):
            self.finish(request, choice, reason)
            self._outbox.output(audience, tell(request, choice, from_token=from_token, text=text))

    def _take_rest(self, choice: Choice, end: SequenceEnd | None) -> str:
        """What the engine had not told yet; gives the text of it."""
        if end is None:
            return ""
        sent = len(choice.token_ids)
        logprobs = end.logprobs[sent:] if end.logprobs is not None else None
        choice.take(end.token_ids[sent:], end.unsent_text, logprobs)
        choice.cached_prompt_tokens = end.cached_prompt_tokens
        if choice.prompt_logprobs is None:
            choice.prompt_logprobs = end.prompt_logprobs
        return end.unsent_text

    def _rejection(self, request: Request, error: HaltlineError) -> Rejected:
        return Rejected(
            key=request.key,
            epoch=self._outbox.epoch,
            code=error.code,
            message=error.message,
            param=error.param,
            retry_after=error.retry_after,
        )

    def _retire(self, request: Request) -> None:
        request.stage = Stage.ENDED
        self._outbox.changed(request)
        self._registry.retire(request)


def accept(request: Request, outbox: Outbox) -> None:
    """Tell the submitter, once and before any output, even of a request that ends here and now."""
    if request.is_answered:
        return
    request.is_answered = True
    counts = [len(ids) for ids in request.prompt_ids] or [0] * len(request.submit.prompts)
    message = Accepted(key=request.key, epoch=outbox.epoch, prompt_tokens=counts)
    outbox.send(request.submitter, message)
