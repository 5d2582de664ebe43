"""How the native forward pass finds out whether one thread is enough for few tokens."""

from __future__ import annotations

import pytest

from inference.engine.models.thread_choice import ThreadChoice


def passes(choice: ThreadChoice, tokens: int, seconds: dict[int, float], count: int) -> list[int]:
    """The threads of that many passes, on a machine where they take those seconds."""
    found = []
    for number in range(count):
        threads = choice.threads(tokens, max(seconds))
        disturbance = 1.0 if number % 3 else 0.0
        choice.took(tokens, threads, seconds[threads] + disturbance)
        found.append(threads)
    return found


@pytest.mark.parametrize(("one", "kept"), [(0.010, 1), (0.0112, 1), (0.015, 4), (0.002, 1)])
def test_it_tries_both_ways_and_keeps_the_better(one: float, kept: int) -> None:
    found = passes(ThreadChoice(), 1, {1: one, 4: 0.010}, 60)
    assert found.count(1) >= 8 <= found.count(4)
    assert found[:4] == [1, 4, 1, 4]
    assert set(found[20:]) == {kept}


def test_it_uses_all_threads_for_many_tokens() -> None:
    assert set(passes(ThreadChoice(), 5, {1: 0.001, 4: 0.010}, 30)) == {4}


def test_it_learns_each_number_of_tokens_by_itself() -> None:
    choice = ThreadChoice()
    assert passes(choice, 1, {1: 0.01, 2: 0.01}, 30)[-1] == 1
    assert passes(choice, 4, {1: 0.02, 2: 0.01}, 30)[-1] == 2
    assert choice.threads(1, 2) == 1


def test_it_has_no_choice_with_one_thread() -> None:
    assert set(passes(ThreadChoice(), 1, {1: 0.01}, 30)) == {1}
