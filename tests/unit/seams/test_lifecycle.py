"""The state machine as data: what the table allows, and what it must never allow."""

from __future__ import annotations

import itertools

import pytest

from inference.lifecycle import (
    DISPATCHED,
    LIVE,
    TERMINAL,
    TRANSITIONS,
    UNDISPATCHED,
    IllegalTransitionError,
    State,
    Trigger,
    advance,
    sources,
)


def test_it_never_leaves_a_terminal_state() -> None:
    assert not [edge for edge in TRANSITIONS if edge[0] in TERMINAL]


def test_it_can_end_every_live_state() -> None:
    for state in LIVE:
        assert advance(state, Trigger.ABORT_CONFIRM) is State.ABORTED
        assert advance(state, Trigger.FAIL) is State.FAILED


def test_it_can_reach_every_state_from_received() -> None:
    reached = {State.RECEIVED}
    for _ in State:
        reached |= {to for (source, _), to in TRANSITIONS.items() if source in reached}
    assert reached == set(State)


def test_it_asks_an_engine_only_about_what_an_engine_may_hold() -> None:
    assert sources(Trigger.ABORT_ASK) == DISPATCHED
    assert not DISPATCHED & UNDISPATCHED


def test_it_requeues_only_what_never_ran() -> None:
    assert sources(Trigger.REQUEUE) == {State.QUEUED}


def test_it_lets_the_true_end_stand_after_an_abort_was_asked_for() -> None:
    ends = {Trigger.FINISH, Trigger.FAIL, Trigger.EXPIRE, Trigger.REJECT, Trigger.ABORT_CONFIRM}
    assert {advance(State.ABORTING, end) for end in ends} == TERMINAL


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(State, Trigger)))
def test_it_refuses_whatever_the_table_does_not_hold(state: State, trigger: Trigger) -> None:
    if (state, trigger) in TRANSITIONS:
        assert advance(state, trigger) is TRANSITIONS[state, trigger]
        return
    with pytest.raises(IllegalTransitionError, match=trigger.value):
        advance(state, trigger)
