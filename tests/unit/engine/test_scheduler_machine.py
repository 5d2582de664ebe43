"""Scheduler and block pool under any history, with a cache that notices a wrong block."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from inference.engine.batch import Batch, Sampled
from inference.engine.block_pool import BlockPool
from inference.engine.config import EngineConfig
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.generation import SamplingParams
from tests.doubles.fake_runner import FakeRunner


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, removes and steps in any order; at the end all that is left must finish."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, Sequence] = {}
        self.gone: set[int] = set()
        self.count = 0

    @initialize(
        blocks=st.integers(3, 10),
        block_size=st.sampled_from([1, 2, 4]),
        slots=st.integers(1, 4),
        extra_budget=st.integers(0, 12),
        caching=st.booleans(),
    )
    def build(
        self, blocks: int, block_size: int, slots: int, extra_budget: int, caching: bool
    ) -> None:
        self.config = EngineConfig(
            max_running=slots,
            kv_tokens=blocks * block_size,
            step_tokens=slots + extra_budget,
            block_size=block_size,
        )
        self.pool = BlockPool(blocks, block_size, caching=caching)
        self.scheduler = Scheduler(self.config, self.pool)
        self.runner = FakeRunner(block_size=block_size, choose=lambda sequence: 1)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        new=st.integers(1, 12),
        priority=st.integers(0, 2),
        asks_prompt=st.booleans(),
    )
    def add(self, prompt: list[int], new: int, priority: int, asks_prompt: bool) -> None:
        self.count += 1
        sequence = Sequence(
            seq_id=self.count,
            prompt_ids=prompt,
            params=SamplingParams(prompt_logprobs=0 if asks_prompt else None),
            eos_ids=frozenset(),
            max_new_tokens=new,
            priority=priority,
            arrival=self.count,
        )
        if self.scheduler.fits(sequence):
            self.scheduler.add(sequence)
            self.live[sequence.seq_id] = sequence

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.scheduler.remove(seq_id) is self.live.pop(seq_id)
        self.gone.add(seq_id)
        assert self.scheduler.remove(seq_id) is None

    @rule(fails=st.integers(0, 9))
    def step(self, fails: int) -> None:
        before = {one.seq_id for one in self.scheduler.sequences() if one.block_ids}
        batch = self.scheduler.schedule()
        self.check_batch(batch, before)
        sampled = self.runner.run(batch)
        if fails == 0:
            for chunk in batch.chunks:
                self.end(chunk.sequence)
            return
        self.scheduler.commit(batch, sampled)
        self.check_commit(batch, sampled)

    @rule()
    def reset_cache(self) -> None:
        self.pool.reset_cache()

    def check_batch(self, batch: Batch, running_before: set[int]) -> None:
        ids = [chunk.sequence.seq_id for chunk in batch.chunks]
        assert len(set(ids)) == len(ids)
        assert self.live.keys() >= set(ids)
        assert not self.gone & set(ids)
        assert batch.num_tokens == sum(chunk.length for chunk in batch.chunks)
        assert batch.num_tokens <= self.config.step_tokens
        assert bool(batch.chunks) == bool(self.live)
        assert not {one.seq_id for one in batch.preempted} & set(ids)
        self.check_order(batch, running_before)

    def check_order(self, batch: Batch, running_before: set[int]) -> None:
        started = [*batch.scheduled_first, *batch.resumed]
        left = [one for one in self.live.values() if not one.block_ids]
        if started:
            assert not batch.preempted
            assert max(one.rank for one in started) < min(
                (one.rank for one in left), default=(99, 0)
            )
        for victim in batch.preempted:
            stay = [self.live[seq_id] for seq_id in running_before]
            assert all(one.rank <= victim.rank for one in stay if one.block_ids)

    def check_commit(self, batch: Batch, sampled: Sampled) -> None:
        assert len(sampled.token_ids) == len(batch.sampling)
        for chunk in batch.chunks:
            sequence = chunk.sequence
            assert sequence.num_computed == chunk.end
            if sequence.params.prompt_logprobs is not None:
                known = min(sequence.num_computed, sequence.num_prompt - 1)
                assert len(sequence.prompt_logprobs) >= known
            if sequence.remaining < 1:
                self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence.seq_id)
        self.live.pop(sequence.seq_id)
        self.gone.add(sequence.seq_id)

    @invariant()
    def adds_up(self) -> None:
        if self.count:
            self.scheduler.check_integrity()
            assert {one.seq_id for one in self.scheduler.sequences()} == self.live.keys()

    def teardown(self) -> None:
        if not self.count:
            return
        work = sum(one.num_tokens + one.remaining for one in self.live.values())
        for _ in range(work * (len(self.live) + 1)):
            if not self.live:
                break
            self.step(1)
            self.scheduler.check_integrity()
        assert not self.live
        assert self.pool.num_free == self.pool.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
