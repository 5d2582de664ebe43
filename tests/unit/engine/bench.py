"""An engine over the fake runner, with short ways to add, step and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inference.engine.config import EngineConfig
from inference.engine.engine import Engine, NewSequence, SequenceUpdate, StepResult
from inference.engine.sequence import Sequence
from inference.generation import FinishReason, SamplingParams, TokenLogprobs
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.fake_runner import Choose, FakeRunner

BLOCK = 4


@dataclass
class Heard:
    """All that the updates said about one sequence."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    marks: list[str] = field(default_factory=list)
    cached: int = 0

    def hear(self, update: SequenceUpdate) -> None:
        assert self.finish is None, "an update after the end"
        self.token_ids += update.token_ids
        self.text += update.text
        self.logprobs += update.logprobs or []
        self.cached += update.cached_prompt_tokens
        self.finish, self.stop_reason = update.finish, update.stop_reason
        self.error = update.error
        if update.prompt_logprobs is not None:
            assert self.prompt_logprobs is None, "prompt logprobs came twice"
            self.prompt_logprobs = update.prompt_logprobs
        marks = ("first_scheduled", "preempted", "resumed")
        self.marks += [mark for mark in marks if getattr(update, mark)]


class Bench:
    """`script` is what each sequence's output spells; without one, letters made from its tokens."""

    def __init__(self, script: list[int] | str | None = None, **sizes: int | bool) -> None:
        given = {"max_running": 4, "kv_tokens": 256, "step_tokens": 16, "max_model_len": 128}
        self.config = EngineConfig(**(given | {"block_size": BLOCK} | sizes))  # type: ignore[arg-type]
        ids = list(script.encode()) if isinstance(script, str) else script
        self.runner = FakeRunner(block_size=self.config.block_size, choose=spelling(ids))
        self.engine = Engine(self.config, self.runner, ByteTokenizer())
        self.heard: dict[int, Heard] = {}
        self.baseline = self.engine.load()

    def add(
        self, seq_id: int = 1, prompt: str = "hello", *, priority: int = 0, **params: Any
    ) -> None:
        self.engine.add(self.new(seq_id, prompt, priority=priority, **params))

    def new(
        self, seq_id: int = 1, prompt: str = "hello", *, priority: int = 0, **params: Any
    ) -> NewSequence:
        return NewSequence(
            seq_id=seq_id,
            prompt_ids=list(prompt.encode()),
            params=SamplingParams(**params),
            priority=priority,
        )

    def step(self) -> StepResult:
        result = self.engine.step()
        self.engine.check_integrity()
        for update in result.updates:
            self.of(update.seq_id).hear(update)
        return result

    def of(self, seq_id: int) -> Heard:
        return self.heard.setdefault(seq_id, Heard())

    def finish(self) -> None:
        """Step until nothing is left; all slots and blocks must then be free."""
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.engine.load() == self.baseline

    def run(self, prompt: str = "hello", **params: Any) -> Heard:
        self.add(1, prompt, **params)
        self.finish()
        return self.of(1)


def spelling(ids: list[int] | None) -> Choose | None:
    if ids is None:
        return None

    def choose(sequence: Sequence) -> int:
        return ids[len(sequence.output_ids) % len(ids)]

    return choose
