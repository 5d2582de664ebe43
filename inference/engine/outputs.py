"""What the engine hands out: per step, per sequence, and at an end. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.sequence import SequenceId
from inference.generation import FinishReason, SamplingParams, TokenLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class NewSequence:
    """What `Engine.add` takes. `seq_id` is the caller's and never used twice."""

    seq_id: SequenceId
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0


@dataclass(slots=True, kw_only=True)
class SequenceUpdate:
    """What one step did to one sequence; several things may be true at once.

    `token_ids` new tokens, the final EOS or stop token included; `text` new text, which may
    lag behind them; `logprobs` one entry per new token if asked for. `prompt_logprobs` come
    once, when the prompt is through: one entry per prompt token, the first None.
    `preempted` and `resumed` come without tokens. `error`: for `finish` ERROR, what to tell.
    """

    seq_id: SequenceId
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    first_scheduled: bool = False
    preempted: bool = False
    resumed: bool = False
    cached_prompt_tokens: int = 0
    error: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class SequenceEnd:
    """All of an aborted sequence, whose slot and blocks are free.

    `text` is the whole text; `unsent_text` the end of it that no update has brought.
    """

    seq_id: SequenceId
    token_ids: list[int]
    text: str
    unsent_text: str
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    cached_prompt_tokens: int
    preemptions: int
    was_scheduled: bool


class StepObserver:
    """Whoever wants to know of a step as it goes; this one does not care."""

    def scheduled(self, updates: list[SequenceUpdate]) -> None:
        """Before the pass: who runs in it for the first time or again, who was preempted."""

    def passed(self, seconds: float) -> None:
        """After the pass, `seconds` into the step, and before its tokens are taken.

        May `add` and `abort`: what is aborted here gets no token of this pass.
        """


@dataclass(slots=True, frozen=True, kw_only=True)
class StepResult:
    """One step. `num_tokens` went through the model, `num_decodes` of them one a sequence.

    `seconds`: the whole step, `run_seconds` the forward pass and the sampling of it.
    """

    updates: list[SequenceUpdate]
    num_tokens: int
    num_sequences: int
    num_decodes: int
    seconds: float
    run_seconds: float


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineLoad:
    """Sequences and blocks at one moment. Blocks that only the prefix cache keeps are free."""

    running: int
    waiting: int
    free_slots: int
    total_slots: int
    free_blocks: int
    total_blocks: int
