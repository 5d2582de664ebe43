"""The scheduler with a pool: who goes when, under which limits."""

from __future__ import annotations

import pytest

from inference.engine.batch import Batch, RawLogprobs, Sampled
from inference.engine.block_pool import BlockPool
from inference.engine.config import EngineConfig
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.generation import SamplingParams


class Desk:
    """A scheduler, a pool, and steps that sample the token 7."""

    def __init__(self, **sizes: int) -> None:
        given = {
            "max_running": 4,
            "kv_tokens": 64,
            "step_tokens": 16,
            "block_size": 4,
            "max_model_len": 64,
        }
        self.config = EngineConfig(**(given | sizes))  # type: ignore[arg-type]
        self.pool = BlockPool(self.config.num_blocks, self.config.block_size)
        self.scheduler = Scheduler(self.config, self.pool)
        self.arrivals = 0

    def add(
        self, seq_id: int, prompt: int | list[int], *, new: int = 8, priority: int = 0
    ) -> Sequence:
        ids = [100 + seq_id] * prompt if isinstance(prompt, int) else prompt
        self.arrivals += 1
        sequence = Sequence(
            seq_id=seq_id,
            prompt_ids=ids,
            params=SamplingParams(),
            eos_ids=frozenset(),
            max_new_tokens=new,
            priority=priority,
            arrival=self.arrivals,
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self, *, token: int = 7) -> Batch:
        batch = self.scheduler.schedule()
        self.scheduler.check_integrity()
        count = len(batch.sampling)
        self.scheduler.commit(batch, Sampled([token] * count, [None] * count))
        for chunk in batch.chunks:
            if chunk.sequence.remaining < 1:
                self.scheduler.remove(chunk.sequence.seq_id)
        self.scheduler.check_integrity()
        return batch


def plan(batch: Batch) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.seq_id, chunk.start, chunk.length) for chunk in batch.chunks]


def test_it_splits_a_long_prompt_into_chunks_of_the_budget() -> None:
    desk = Desk(step_tokens=16)
    desk.add(1, 40)
    batches = [desk.step() for _ in range(4)]
    assert [plan(batch) for batch in batches] == [
        [(1, 0, 16)],
        [(1, 16, 16)],
        [(1, 32, 8)],
        [(1, 40, 1)],
    ]
    assert [len(batch.sampling) for batch in batches] == [0, 0, 1, 1]


def test_it_decodes_first_and_fills_the_step_with_prefill() -> None:
    desk = Desk(step_tokens=16)
    desk.add(1, 4)
    desk.step()
    desk.add(2, 40)
    batch = desk.step()
    assert plan(batch) == [(1, 4, 1), (2, 0, 15)]
    assert batch.num_decodes == 1
    assert batch.num_tokens == 16


def test_it_puts_several_prompts_into_one_step() -> None:
    desk = Desk(step_tokens=16)
    for seq_id in (1, 2, 3):
        desk.add(seq_id, 6)
    assert plan(desk.step()) == [(1, 0, 6), (2, 0, 6), (3, 0, 4)]


def test_it_never_runs_more_than_there_are_slots() -> None:
    desk = Desk(max_running=2)
    for seq_id in (1, 2, 3):
        desk.add(seq_id, 2, new=2)
    desk.step()
    assert (desk.scheduler.running_len, desk.scheduler.queue_len) == (2, 1)
    desk.step()
    assert [chunk[0] for chunk in plan(desk.step())] == [3]


def test_it_takes_higher_priority_first_then_arrival() -> None:
    desk = Desk(max_running=1)
    for seq_id, priority in [(1, 0), (2, 3), (3, 0), (4, 3)]:
        desk.add(seq_id, 2, new=1, priority=priority)
    assert [plan(desk.step())[0][0] for _ in range(4)] == [2, 4, 1, 3]


def test_a_prompt_of_higher_priority_overtakes_a_long_prefill() -> None:
    desk = Desk(step_tokens=8)
    desk.add(1, 30)
    desk.step()
    desk.add(2, 4, priority=1)
    assert plan(desk.step()) == [(2, 0, 4), (1, 8, 4)]


def test_a_prompt_that_came_later_does_not_overtake_a_long_prefill() -> None:
    desk = Desk(step_tokens=8)
    desk.add(1, 30)
    desk.step()
    desk.add(2, 4)
    assert plan(desk.step()) == [(1, 8, 8)]


def test_a_newcomer_that_would_be_the_next_victim_waits_instead() -> None:
    desk = Desk(kv_tokens=20, max_running=2)
    desk.add(1, 8, new=8)
    desk.step()
    second = desk.add(2, 8, new=2)
    desk.step()
    assert not second.was_scheduled
    while desk.scheduler.has_work:
        assert not desk.step().preempted


def test_prompt_logprobs_known_before_a_preemption_are_not_asked_for_again() -> None:
    desk = Desk()
    sequence = desk.add(1, 10)
    sequence.params = SamplingParams(prompt_logprobs=0)
    sequence.prompt_logprobs = [RawLogprobs(1, -1.0)] * 6
    (chunk,) = desk.scheduler.schedule().chunks
    assert (chunk.start, chunk.prompt_positions) == (0, range(6, 9))


def test_a_large_head_of_the_queue_is_not_overtaken_by_smaller_ones() -> None:
    desk = Desk(kv_tokens=32, max_running=4)
    desk.add(1, 20, new=2)
    desk.add(2, 20, new=2)
    desk.add(3, 2, new=2)
    assert [chunk[0] for chunk in plan(desk.step())] == [1]
    while desk.scheduler.queue_len == 2:
        desk.step()
    assert desk.scheduler.running_len
    assert {2} <= {one.seq_id for one in desk.scheduler.sequences()}


def test_it_shares_the_blocks_of_an_equal_prefix() -> None:
    desk = Desk()
    prompt = list(range(10))
    desk.add(1, prompt)
    desk.step()
    second = desk.add(2, prompt)
    batch = desk.step()
    assert plan(batch) == [(1, 10, 1), (2, 8, 2)]
    assert second.num_cached_prompt == 8
    assert batch.scheduled_first == [second]


def test_it_leaves_one_token_to_compute_of_a_prompt_that_is_all_known() -> None:
    desk = Desk()
    prompt = list(range(8))
    desk.add(1, prompt)
    desk.step()
    desk.add(2, prompt)
    assert plan(desk.step())[1] == (2, 4, 4)


def test_output_blocks_are_found_by_a_prompt_that_repeats_them() -> None:
    desk = Desk()
    desk.add(1, [1, 2, 3], new=6)
    for _ in range(6):
        desk.step()
    assert desk.scheduler.running_len == 0
    again = desk.add(2, [1, 2, 3, 7, 7, 7, 7, 7, 7, 7])
    desk.step()
    assert again.num_cached_prompt == 8


def test_blocks_that_were_never_committed_are_not_shared() -> None:
    desk = Desk()
    prompt = list(range(10))
    desk.add(1, prompt)
    desk.scheduler.schedule()
    desk.scheduler.remove(1)
    second = desk.add(2, prompt)
    desk.step()
    assert second.num_cached_prompt == 0


def test_what_began_before_a_reset_publishes_nothing_after_it() -> None:
    desk = Desk()
    prompt = [1, 2, 3]
    desk.add(1, prompt, new=12)
    desk.step()
    desk.pool.reset_cache()
    for _ in range(6):
        desk.step()
    second = desk.add(2, [1, 2, 3, 7, 7, 7, 7, 7])
    desk.step()
    assert second.num_cached_prompt == 0


def test_a_prompt_whose_probabilities_are_asked_for_is_computed_whole() -> None:
    desk = Desk()
    prompt = list(range(10))
    desk.add(1, prompt)
    desk.step()
    asking = Sequence(
        seq_id=2,
        prompt_ids=prompt,
        params=SamplingParams(prompt_logprobs=0),
        eos_ids=frozenset(),
        max_new_tokens=2,
        arrival=2,
    )
    desk.scheduler.add(asking)
    batch = desk.scheduler.schedule()
    chunk = batch.chunks[-1]
    assert (chunk.start, chunk.length, chunk.prompt_positions) == (0, 10, range(9))


def test_out_of_blocks_it_preempts_the_last_in_rank_and_keeps_its_tokens() -> None:
    desk = Desk(kv_tokens=24, max_running=2)
    first, second = desk.add(1, 8, new=12), desk.add(2, 8, new=12)
    while not (batch := desk.step()).preempted:
        assert len(batch.chunks) > 0
    assert batch.preempted == [second]
    assert [chunk.sequence for chunk in batch.chunks] == [first]
    assert (second.num_computed, second.block_ids) == (0, [])
    assert len(second.output_ids) > 0
    while second.remaining:
        batch = desk.step()
    assert (second.preemptions, first.preemptions) == (1, 0)
    assert len(second.output_ids) == 12
    assert desk.pool.num_free == 6


def test_low_priority_gives_way_even_if_it_came_first() -> None:
    desk = Desk(kv_tokens=24, max_running=2)
    low = desk.add(1, 8, new=12)
    desk.add(2, 8, new=12, priority=1)
    while not (batch := desk.step()).preempted:
        assert batch.chunks
    assert batch.preempted == [low]


def test_a_preempted_one_goes_before_those_who_came_later() -> None:
    desk = Desk(kv_tokens=24, max_running=2)
    desk.add(1, 8, new=12)
    second, third = desk.add(2, 8, new=12), desk.add(3, 2, new=2)
    while not second.preemptions:
        desk.step()
    resumed: list[Sequence] = []
    while not third.was_scheduled:
        resumed += desk.step().resumed
    assert resumed == [second]


def test_a_removed_one_frees_slot_and_blocks_at_once_in_every_phase() -> None:
    desk = Desk(max_running=2, step_tokens=8)
    decoding = desk.add(1, 4)
    desk.step()
    prefilling, waiting = desk.add(2, 20), desk.add(3, 4)
    desk.step()
    for sequence in (decoding, prefilling, waiting):
        assert desk.scheduler.remove(sequence.seq_id) is sequence
        desk.scheduler.check_integrity()
    assert (desk.scheduler.running_len, desk.scheduler.queue_len) == (0, 0)
    assert desk.pool.num_free == desk.pool.num_blocks
    assert not desk.scheduler.has_work
    assert desk.scheduler.schedule().chunks == []


def test_an_unknown_or_removed_id_is_none() -> None:
    desk = Desk()
    desk.add(1, 2)
    assert desk.scheduler.remove(9) is None
    assert desk.scheduler.remove(1) is not None
    assert desk.scheduler.remove(1) is None


def test_a_commit_passes_over_what_was_removed_since() -> None:
    desk = Desk()
    gone, stays = desk.add(1, 4), desk.add(2, 4)
    batch = desk.scheduler.schedule()
    desk.scheduler.remove(1)
    desk.scheduler.commit(batch, Sampled([5, 6], [None, None]))
    assert (gone.output_ids, stays.output_ids) == ([], [6])
    desk.scheduler.check_integrity()


def test_it_refuses_what_could_never_run_and_what_is_there_already() -> None:
    desk = Desk(kv_tokens=16)
    with pytest.raises(ValueError, match="never run"):
        desk.add(1, 10, new=20)
    desk.add(2, 4)
    with pytest.raises(ValueError, match="already"):
        desk.add(2, 4)
    desk.step()
    with pytest.raises(ValueError, match="already"):
        desk.add(2, 4)


def test_a_step_does_not_look_at_the_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    rank = Sequence.__dict__["rank"].fget

    def counted(sequence: Sequence) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        found: tuple[int, int] = rank(sequence)
        return found

    def cost(waiting: int) -> int:
        nonlocal looks
        desk = Desk(max_running=2)
        for seq_id in range(waiting):
            desk.add(seq_id, 2, new=50)
        desk.scheduler.schedule()
        looks = 0
        desk.scheduler.schedule()
        return looks

    monkeypatch.setattr(Sequence, "rank", property(counted))
    assert cost(5000) == cost(10)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"step_tokens": 3}, "max_running"),
        ({"kv_tokens": 3}, "one block"),
        ({"max_running": 0}, "max_running must be at least 1"),
        ({"block_size": 0}, "block_size must be at least 1"),
    ],
)
def test_sizes_that_could_never_work_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Desk(**sizes)
