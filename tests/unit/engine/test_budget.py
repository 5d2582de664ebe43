"""Passes are cut so that they take as long as they may, whatever tokens cost here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.budget import LEAST_PREFILL, StepBudget
from inference.engine.config import EngineConfig


def budget(step_seconds: float | None = 0.12, step_tokens: int = 512) -> StepBudget:
    return StepBudget(EngineConfig(step_seconds=step_seconds, step_tokens=step_tokens))


def settle(found: StepBudget, *, per_token: float, decode: float, num_decodes: int) -> float:
    """Run passes on a machine with those costs; gives the seconds of the last one."""
    seconds = 0.0
    for _ in range(60):
        if num_decodes:
            found.learn(num_tokens=num_decodes, num_decodes=num_decodes, seconds=decode)
        prefill = found.prefill_tokens(num_decodes)
        seconds = decode + prefill * per_token
        found.learn(num_tokens=prefill + num_decodes, num_decodes=num_decodes, seconds=seconds)
    return seconds


@pytest.mark.parametrize("per_token", [0.0004, 0.0008, 0.002])
@pytest.mark.parametrize(("num_decodes", "decode"), [(0, 0.0), (1, 0.02), (32, 0.05)])
def test_it_makes_a_pass_as_long_as_it_may_be(
    per_token: float, num_decodes: int, decode: float
) -> None:
    seconds = settle(budget(), per_token=per_token, decode=decode, num_decodes=num_decodes)
    assert 0.09 <= seconds <= 0.13


def test_it_lets_prompts_get_on_however_slow_decoding_is() -> None:
    found = budget()
    settle(found, per_token=0.001, decode=0.5, num_decodes=32)
    assert found.prefill_tokens(32) == LEAST_PREFILL


def test_it_has_no_limit_but_the_tokens_where_none_is_set() -> None:
    found = budget(step_seconds=None)
    settle(found, per_token=1.0, decode=1.0, num_decodes=4)
    assert found.prefill_tokens(12) == 500


def test_it_shortens_quickly_when_tokens_become_dear() -> None:
    found = budget()
    settle(found, per_token=0.0005, decode=0.0, num_decodes=0)
    before = found.prefill_tokens(0)
    found.learn(num_tokens=before, num_decodes=0, seconds=before * 0.002)
    assert found.prefill_tokens(0) < before * 0.6


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 448), st.floats(0, 30)), max_size=40))
def test_it_never_asks_for_nothing_nor_for_more_than_the_tokens(
    passes: list[tuple[int, int, float]],
) -> None:
    found = budget()
    for num_decodes, prefill, seconds in passes:
        found.learn(num_tokens=prefill + num_decodes, num_decodes=num_decodes, seconds=seconds)
        assert 1 <= found.prefill_tokens(num_decodes) <= 512 - num_decodes
