"""The waiting queue alone: order, removal by id, no growth."""

from __future__ import annotations

import random

import pytest

from inference.engine.sequence import Sequence
from inference.engine.waiting import WaitingQueue
from inference.generation import SamplingParams


def sequence(seq_id: int, *, priority: int = 0, arrival: int | None = None) -> Sequence:
    return Sequence(
        seq_id=seq_id,
        prompt_ids=[1],
        params=SamplingParams(),
        eos_ids=frozenset(),
        max_new_tokens=1,
        priority=priority,
        arrival=seq_id if arrival is None else arrival,
    )


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while (head := queue.peek()) is not None:
        queue.remove(head.seq_id)
        order.append(head.seq_id)
    return order


def test_it_puts_priority_before_arrival() -> None:
    queue = WaitingQueue()
    for seq_id, priority in [(1, 0), (2, 5), (3, 0), (4, 5)]:
        queue.push(sequence(seq_id, priority=priority))
    assert drain(queue) == [2, 4, 1, 3]


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_removing_first_middle_or_last_keeps_the_order_of_the_rest(removed: int) -> None:
    queue = WaitingQueue()
    for seq_id in (1, 2, 3):
        queue.push(sequence(seq_id))
    found = queue.remove(removed)
    assert found is not None
    assert found.seq_id == removed
    assert drain(queue) == [one for one in (1, 2, 3) if one != removed]


def test_removing_what_is_not_there_changes_nothing() -> None:
    queue = WaitingQueue()
    queue.push(sequence(1))
    assert queue.remove(2) is None
    assert drain(queue) == [1]
    assert queue.remove(1) is None


def test_an_id_that_comes_back_stands_only_at_its_new_place() -> None:
    queue = WaitingQueue()
    for seq_id in (1, 2, 3):
        queue.push(sequence(seq_id))
    queue.remove(2)
    queue.push(sequence(2, arrival=9))
    assert drain(queue) == [1, 3, 2]


def test_one_that_waits_cannot_be_added_again() -> None:
    queue = WaitingQueue()
    queue.push(sequence(1))
    with pytest.raises(ValueError, match="waits already"):
        queue.push(sequence(1))


def test_a_mass_removal_leaves_no_memory_behind() -> None:
    queue = WaitingQueue()
    for seq_id in range(5000):
        queue.push(sequence(seq_id))
    for seq_id in range(1, 5000):
        queue.remove(seq_id)
    assert len(queue) == 1
    assert len(queue._heap) < 50


def test_it_stays_in_order_and_small_under_any_history() -> None:
    chance = random.Random(3)
    queue, alive = WaitingQueue(), dict[int, Sequence]()
    for seq_id in range(2000):
        alive[seq_id] = sequence(seq_id, priority=chance.randrange(3))
        queue.push(alive[seq_id])
        if chance.random() < 0.6:
            gone = chance.choice(list(alive))
            back = alive.pop(gone)
            queue.remove(gone)
            if chance.random() < 0.3:
                queue.push(back)  # as a preempted one does
                alive[gone] = back
        assert len(queue._heap) <= 2 * len(queue) + 18
    assert drain(queue) == sorted(alive, key=lambda one: alive[one].rank)
