"""The engine: sequences in, tokens and texts out, one `step` at a time.

`step` is schedule, run, postprocess. Nothing here waits, locks or knows who asked: one thread
calls `add`, `abort` and `step` in turn, and an abort takes effect before it returns.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable

from inference.engine.admission import check_tokens, max_new_tokens
from inference.engine.batch import Batch, RawLogprobs, Runner, Sampled, check_answer
from inference.engine.block_pool import BlockPool
from inference.engine.config import EngineConfig
from inference.engine.outputs import (
    EngineLoad,
    NewSequence,
    SequenceEnd,
    SequenceUpdate,
    StepObserver,
    StepResult,
)
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence, SequenceId
from inference.engine.tokenizer import Tokenizer
from inference.engine.tracking import News, Tracker
from inference.errors import EngineError, QueueFullError

__all__ = [
    "Engine",
    "EngineLoad",
    "NewSequence",
    "SequenceEnd",
    "SequenceUpdate",
    "StepObserver",
    "StepResult",
]

logger = logging.getLogger(__name__)


_NOBODY = StepObserver()


class Engine:
    """See `inference.engine.outputs` for what goes in and out."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._runner = runner
        self._tokenizer = tokenizer
        self._clock = clock
        self._pool = BlockPool(config.num_blocks, config.block_size, caching=config.prefix_caching)
        self._scheduler = Scheduler(config, self._pool)
        self._trackers: dict[SequenceId, Tracker] = {}
        self._arrivals = itertools.count()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def load(self) -> EngineLoad:
        running, slots = self._scheduler.running_len, self._config.max_running
        return EngineLoad(
            running=running,
            waiting=self._scheduler.queue_len,
            free_slots=slots - running,
            total_slots=slots,
            free_blocks=self._pool.num_free,
            total_blocks=self._pool.num_blocks,
        )

    def add(self, *new: NewSequence) -> None:
        """Queue sequences: all, or none and an error.

        Raises `InvalidRequestError` for what the model cannot read, and of that kind
        `ContextLengthExceededError` for what could never fit; `QueueFullError`.
        """
        if len({one.seq_id for one in new}) < len(new):
            raise ValueError("a sequence id is given twice")
        sequences = [self._checked(one) for one in new]
        self._check_queue(len(new))
        for sequence in sequences:
            self._scheduler.add(sequence)
            self._trackers[sequence.seq_id] = Tracker(sequence, self._tokenizer)

    def abort(self, seq_ids: Iterable[SequenceId]) -> list[SequenceEnd]:
        """End sequences wherever they are, without a forward pass.

        Slots and blocks are free on return. Unknown ids (ended ones too) are passed over.
        """
        known = [seq_id for seq_id in dict.fromkeys(seq_ids) if seq_id in self._trackers]
        return [self._release(seq_id).end() for seq_id in known]

    def step(self, observer: StepObserver = _NOBODY) -> StepResult:
        """One forward pass over those who are next, and what came of it.

        A pass that fails raises nothing: it ends every sequence in it with an `error` update.
        """
        started = self._clock()
        batch = self._scheduler.schedule()
        news = News()
        news.announce(batch)
        observer.scheduled(news.updates)
        run_started = self._clock()
        outcome = self._run(batch)
        run_seconds = self._clock() - run_started
        self._scheduler.learn(batch, run_seconds)
        observer.passed(self._clock() - started)
        self._postprocess(batch, outcome, news)
        return StepResult(
            updates=news.updates,
            num_tokens=batch.num_tokens,
            num_sequences=len(batch.chunks),
            num_decodes=batch.num_decodes,
            seconds=self._clock() - started,
            run_seconds=run_seconds,
        )

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; what runs goes on. Returns how many blocks were forgotten."""
        forgotten = self._pool.reset_cache()
        self._runner.reset_cache()
        return forgotten

    def check_integrity(self) -> None:
        """Raises `AssertionError` if slots, blocks or sequences do not add up."""
        self._scheduler.check_integrity()
        scheduled = {sequence.seq_id for sequence in self._scheduler.sequences()}
        if scheduled != self._trackers.keys():
            raise AssertionError("the scheduler's sequences are not those that are tracked")

    def _checked(self, new: NewSequence) -> Sequence:
        if new.seq_id in self._trackers:
            raise ValueError(f"sequence {new.seq_id} is here already")
        check_tokens(new, self._runner.vocab_size)
        return Sequence(
            seq_id=new.seq_id,
            prompt_ids=new.prompt_ids,
            params=new.params,
            eos_ids=self._tokenizer.eos_ids,
            max_new_tokens=max_new_tokens(new, self._config),
            priority=new.priority,
            arrival=next(self._arrivals),
        )

    def _check_queue(self, count: int) -> None:
        """Those who would get a free slot at the next step do not count as queued."""
        load = self.load()
        if load.waiting + count > self._config.max_queued + load.free_slots:
            raise QueueFullError(retry_after=1.0)

    def _run(self, batch: Batch) -> Sampled | EngineError:
        if not batch.chunks:
            return Sampled(token_ids=[], logprobs=[])
        try:
            sampled = self._runner.run(batch)
            check_answer(batch, sampled)
        except Exception as problem:  # whatever a model raises must end its own batch only
            logger.exception("a forward pass over %d sequences failed", len(batch.chunks))
            return EngineError(f"the forward pass failed ({type(problem).__name__})")
        return sampled

    def _postprocess(self, batch: Batch, outcome: Sampled | EngineError, news: News) -> None:
        if isinstance(outcome, EngineError):
            for sequence in (chunk.sequence for chunk in batch.chunks):
                if self._is_live(sequence):
                    self._release(sequence.seq_id).fail(outcome.message, news)
            return
        self._scheduler.commit(batch, outcome)
        answers = zip(outcome.token_ids, outcome.logprobs, strict=True)
        for chunk in batch.chunks:
            token_id, raw = next(answers) if chunk.samples else (None, None)
            if self._is_live(chunk.sequence):
                self._follow(chunk.sequence, token_id, raw, news)

    def _is_live(self, sequence: Sequence) -> bool:
        """False for one that was aborted while its pass ran, whoever bears its id by now."""
        tracker = self._trackers.get(sequence.seq_id)
        return tracker is not None and tracker.sequence is sequence

    def _follow(
        self, sequence: Sequence, token_id: int | None, raw: RawLogprobs | None, news: News
    ) -> None:
        try:
            finished = self._trackers[sequence.seq_id].follow(token_id, raw, news)
        except Exception:  # a text that cannot be made must not end the others in the batch
            logger.exception("the output of sequence %d could not be decoded", sequence.seq_id)
            message = "the output could not be decoded"
            self._release(sequence.seq_id).give_up(message, news)
            return
        if finished:
            self._release(sequence.seq_id)

    def _release(self, seq_id: SequenceId) -> Tracker:
        self._scheduler.remove(seq_id)
        self._runner.forget([seq_id])
        return self._trackers.pop(seq_id)
