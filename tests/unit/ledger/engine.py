"""An engine's side of one request, as events: a timeline that each event repeats from its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from inference.events import ChoiceEnd, RequestEvent, TimelineEntry
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import InferenceRequest


@dataclass
class Run:
    """What an engine did with one request. Each method appends; `event` tells all so far."""

    request_id: str
    generation: int = 1
    replica: str = "r0"
    epoch: str = "e1"
    timeline: list[TimelineEntry] = field(default_factory=list)
    tokens: int = 0

    @classmethod
    def of(cls, row: InferenceRequest) -> Run:
        return cls(row.pk, row.generation, row.replica, row.epoch)

    def event(self) -> RequestEvent:
        return RequestEvent(
            key=RequestKey(self.request_id, self.generation),
            replica=self.replica,
            epoch=self.epoch,
            timeline=list(self.timeline),
            prompt_tokens=7,
            output_tokens=self.tokens,
        )

    def schedule(self) -> RequestEvent:
        return self._tell(Trigger.SCHEDULE)

    def preempt(self) -> RequestEvent:
        return self._tell(Trigger.PREEMPT)

    def end_choice(
        self,
        index: int = 0,
        *,
        tokens: int = 3,
        reason: FinishReason = FinishReason.STOP,
        trigger: Trigger | None = None,
        abort: AbortInfo | None = None,
        error_code: str | None = None,
    ) -> RequestEvent:
        self.tokens += tokens
        end = ChoiceEnd(
            index=index,
            finish_reason=reason,
            token_ids=list(range(tokens)),
            text="x" * tokens,
            abort=abort,
            error_code=error_code,
        )
        return self._tell(trigger, choice_end=end)

    def finish(self, *, tokens: int = 3) -> RequestEvent:
        return self.end_choice(tokens=tokens, trigger=Trigger.FINISH)

    def abort(
        self, *, tokens: int = 3, abort_id: str | None = None, cause: AbortCause = AbortCause.API
    ) -> RequestEvent:
        return self.end_choice(
            tokens=tokens,
            reason=FinishReason.ABORT,
            trigger=Trigger.ABORT_CONFIRM,
            abort=AbortInfo(id=abort_id, cause=cause, reason="enough"),
        )

    def fail(self) -> RequestEvent:
        return self.end_choice(
            tokens=0, reason=FinishReason.ERROR, trigger=Trigger.FAIL, error_code="engine_error"
        )

    def _tell(self, trigger: Trigger | None, **parts: Any) -> RequestEvent:
        entry = TimelineEntry(
            seq=len(self.timeline) + 1, at=timezone.now().timestamp(), trigger=trigger, **parts
        )
        self.timeline.append(entry)
        return self.event()
