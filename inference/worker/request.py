"""A request in the engine process: its choices, what they have produced, and its timeline.

Plain state with the rules of its own consistency. Only the engine's thread touches it; it knows
neither the engine nor any connection's workings.
"""

from __future__ import annotations

from enum import Enum

from inference.engine.sequence import SequenceId
from inference.events import ChoiceEnd, TimelineEntry
from inference.generation import FinishReason, TokenLogprobs, Usage
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey, Submit
from inference.worker.session import Session


class Stage(Enum):
    """How far a request is, as the ledger's states have it."""

    TOKENIZING = "tokenizing"
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ENDED = "ended"


class Choice:
    """One sequence of a request and all that it has produced.

    `text_ends[i]` is how much of the text was known when token i was: the text after it is what
    a follower who has token i still lacks.
    """

    __slots__ = (
        "cached_prompt_tokens",
        "error_code",
        "error_message",
        "finish",
        "index",
        "logprobs",
        "prompt_logprobs",
        "seq_id",
        "stop_reason",
        "text_ends",
        "text_length",
        "texts",
        "token_ids",
        "told_prompt",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.seq_id: SequenceId | None = None
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.text_length = 0
        self.text_ends: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.cached_prompt_tokens = 0
        self.told_prompt = False
        self.finish: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.error_code: str | None = None
        self.error_message: str | None = None

    @property
    def text(self) -> str:
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""

    def take(self, token_ids: list[int], text: str, logprobs: list[TokenLogprobs] | None) -> None:
        """Append what was produced."""
        if text:
            self.texts.append(text)
            self.text_length += len(text)
        self.token_ids += token_ids
        self.text_ends += [self.text_length] * len(token_ids)
        self.logprobs += logprobs or ()

    def text_after(self, token: int) -> str:
        """The text that whoever has the first `token` tokens still lacks."""
        if token < 1 or not self.text_ends:
            return self.text
        return self.text[self.text_ends[min(token, len(self.text_ends)) - 1] :]


class Request:
    """One Submit and what became of it.

    `submitter` hears whether it is accepted; `session` is the same if it is attached, else None:
    whose end aborts it, and who gets its outputs. `prompt_texts`: for `echo` only. `abort`: why
    it ends, once it is to. `busy_seconds`: its share of the steps that it was in. One that asks
    for an impossible number of choices has none, and can only be rejected.
    """

    __slots__ = (
        "abort",
        "arrived_at",
        "busy_seconds",
        "choices",
        "first_token_at",
        "followers",
        "is_answered",
        "num_live",
        "preemptions",
        "prompt_ids",
        "prompt_texts",
        "session",
        "stage",
        "submit",
        "submitter",
        "timeline",
        "was_scheduled",
        "wasted_seconds",
    )

    def __init__(
        self, submit: Submit, *, submitter: Session, arrived_at: float, num_choices: int
    ) -> None:
        self.submit = submit
        self.submitter = submitter
        self.session: Session | None = submitter if submit.attached else None
        self.arrived_at = arrived_at
        self.stage = Stage.TOKENIZING
        self.choices = [Choice(index) for index in range(num_choices)]
        self.prompt_ids: list[list[int]] = []
        self.prompt_texts: list[str] | None = None
        self.followers: set[Session] = set()
        self.timeline: list[TimelineEntry] = []
        self.num_live = len(self.choices)
        self.is_answered = False
        self.was_scheduled = False
        self.first_token_at: float | None = None
        self.abort: AbortInfo | None = None
        self.preemptions = 0
        self.busy_seconds = 0.0
        self.wasted_seconds = 0.0

    @property
    def key(self) -> RequestKey:
        return self.submit.key

    @property
    def is_ended(self) -> bool:
        return self.stage is Stage.ENDED

    @property
    def live_choices(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.finish is None]

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def audience(self) -> set[Session]:
        """Whom its outputs go to."""
        return self.followers | {self.session} if self.session is not None else self.followers

    def prompt_of(self, choice: Choice) -> int:
        """The index of a choice's prompt."""
        return choice.index // self.submit.n

    @property
    def cached_prompt_tokens(self) -> int:
        """Per prompt once: what its first choice found in the cache."""
        firsts = (choice for choice in self.choices if choice.index % self.submit.n == 0)
        return sum(choice.cached_prompt_tokens for choice in firsts)

    @property
    def usage(self) -> Usage:
        """The whole request's, so far. Each prompt counts once, whatever `n` is."""
        return Usage(
            prompt_tokens=sum(map(len, self.prompt_ids)),
            output_tokens=self.output_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
        )

    def log(
        self,
        at: float,
        *,
        trigger: Trigger | None = None,
        choice_end: ChoiceEnd | None = None,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Append to the timeline; `at` is never before the last entry's."""
        self.timeline.append(
            TimelineEntry(
                seq=len(self.timeline) + 1,
                at=max(at, self.timeline[-1].at) if self.timeline else at,
                trigger=trigger,
                choice_end=choice_end,
                first_token_at=self.first_token_at,
                detail=detail or {},
            )
        )

    def end_choice(self, choice: Choice, reason: FinishReason) -> None:
        if choice.finish is not None:
            raise ValueError(f"choice {choice.index} of {self.key} has ended before")
        choice.finish = reason
        self.num_live -= 1

    def choice_end(self, choice: Choice) -> ChoiceEnd:
        """The whole of a choice that has ended, for the record."""
        if choice.finish is None:
            raise ValueError(f"choice {choice.index} of {self.key} has not ended")
        return ChoiceEnd(
            index=choice.index,
            finish_reason=choice.finish,
            token_ids=list(choice.token_ids),
            text=choice.text,
            logprobs=list(choice.logprobs) if self.submit.params.logprobs is not None else None,
            stop_reason=choice.stop_reason,
            abort=self.abort if choice.finish is FinishReason.ABORT else None,
            error_code=choice.error_code,
            error_message=choice.error_message,
        )

    @property
    def end_trigger(self) -> Trigger:
        """How the whole ended: aborted if one choice was, failed if one did, else by the rest."""
        ends = {choice.finish for choice in self.choices}
        if FinishReason.ABORT in ends:
            return Trigger.ABORT_CONFIRM
        if FinishReason.ERROR in ends:
            return Trigger.FAIL
        return Trigger.EXPIRE if FinishReason.EXPIRED in ends else Trigger.FINISH
