"""What a step of the engine did to requests: stages, tokens, ends, and who paid for the time.

Only the engine's thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inference.engine.engine import SequenceUpdate, StepResult
from inference.errors import EngineError
from inference.generation import FinishReason
from inference.lifecycle import Trigger
from inference.worker.ending import Finalizer
from inference.worker.outbox import Outbox
from inference.worker.registry import Registry
from inference.worker.request import Choice, Request, Stage
from inference.worker.telling import tell


@dataclass(slots=True, frozen=True)
class LastStep:
    """When it was, and how many seconds of it each of its choices is charged with."""

    started_at: float = 0.0
    ended_at: float = 0.0
    share: float = 0.0
    choices: frozenset[int] = frozenset()

    def share_after(self, moment: float) -> float:
        """The part of one choice's share that was spent after `moment`."""
        length = self.ended_at - self.started_at
        late = self.ended_at - max(moment, self.started_at)
        return self.share * late / length if length > 0 and late > 0 else 0.0


class StepReport:
    def __init__(
        self,
        *,
        registry: Registry,
        outbox: Outbox,
        finalizer: Finalizer,
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._outbox = registry, outbox
        self._finalizer, self._clock = finalizer, clock
        self.last = LastStep()

    def move(self, updates: Iterable[SequenceUpdate], *, at: float) -> None:
        """Who was preempted for the step that began at `at`, and who begins to run in it."""
        for update, request, choice in self._known(updates):
            self._move(request, choice, update, at=at)

    def charge(self, seconds: float, *, started_at: float) -> None:
        """A pass is over: charge it to those who run, in equal parts.

        The engine does not say who took how long.
        """
        running = self._registry.running
        share = seconds / len(running) if running else 0.0
        for request, _ in running.values():
            request.busy_seconds += share
        self.last = LastStep(started_at, self._clock(), share, frozenset(running))

    def take(self, result: StepResult) -> None:
        """Tokens, texts and ends, of those who are still there."""
        for update, request, choice in self._known(result.updates):
            self._take(request, choice, update)

    def _known(
        self, updates: Iterable[SequenceUpdate]
    ) -> list[tuple[SequenceUpdate, Request, Choice]]:
        found = [(update, self._registry.of_sequence(update.seq_id)) for update in updates]
        return [(update, *place) for update, place in found if place is not None]

    def charge_waste(self, request: Request, *, since: float) -> None:
        """The request's share of the last step after an abort of it had come in."""
        count = sum(choice.seq_id in self.last.choices for choice in request.live_choices)
        request.wasted_seconds += count * self.last.share_after(since)

    def _move(self, request: Request, choice: Choice, update: SequenceUpdate, *, at: float) -> None:
        if update.preempted:
            request.preemptions += 1
            self._registry.set_waiting(update.seq_id)
            if request.stage is Stage.RUNNING and not self._runs(request):
                self._enter(request, Stage.PREEMPTED, Trigger.PREEMPT, at=at)
        if update.first_scheduled or update.resumed:
            request.was_scheduled = True
            self._registry.set_running(update.seq_id)
            if request.stage is not Stage.RUNNING:
                self._enter(request, Stage.RUNNING, Trigger.SCHEDULE, at=at)
        if update.first_scheduled:
            choice.cached_prompt_tokens = update.cached_prompt_tokens

    def _runs(self, request: Request) -> bool:
        return any(choice.seq_id in self._registry.running for choice in request.choices)

    def _enter(self, request: Request, stage: Stage, trigger: Trigger, *, at: float) -> None:
        request.stage = stage
        request.log(at, trigger=trigger)
        self._outbox.changed(request)

    def _take(self, request: Request, choice: Choice, update: SequenceUpdate) -> None:
        if update.prompt_logprobs is not None:
            choice.prompt_logprobs = update.prompt_logprobs
        if not (update.token_ids or update.text or update.finish):
            return
        sent = len(choice.token_ids)
        choice.take(update.token_ids, update.text, update.logprobs)
        if update.token_ids and request.first_token_at is None:
            request.first_token_at = self._clock()
        audience = request.audience
        if update.finish is not None:
            self._end(request, choice, update, update.finish)
        if audience:
            item = tell(request, choice, from_token=sent, text=update.text)
            self._outbox.output(audience, item)

    def _end(
        self, request: Request, choice: Choice, update: SequenceUpdate, reason: FinishReason
    ) -> None:
        choice.stop_reason = update.stop_reason
        if reason is FinishReason.ERROR:
            choice.error_code, choice.error_message = EngineError.code, update.error
        self._finalizer.finish(request, choice, reason)
