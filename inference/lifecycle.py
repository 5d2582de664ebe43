"""THE state machine of a request, as data: everything that names a state derives from here.

`TRANSITIONS` maps (state, trigger) to the next state; what it does not hold cannot happen. The
ledger writes states only through `advance`; the console takes its colours and the tests their
cases from the same table. This module knows neither storage nor transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class State(StrEnum):
    RECEIVED = "received"
    HELD = "held"
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ABORTING = "aborting"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"


class Trigger(StrEnum):
    """What happened. The comment beside an edge below says who may report it."""

    RECEIVE = "receive"
    HOLD = "hold"
    ENQUEUE = "enqueue"
    REJECT = "reject"
    SCHEDULE = "schedule"
    PREEMPT = "preempt"
    FINISH = "finish"
    FAIL = "fail"
    EXPIRE = "expire"
    ABORT_ASK = "abort_ask"
    ABORT_CONFIRM = "abort_confirm"
    REQUEUE = "requeue"


TERMINAL: frozenset[State] = frozenset(
    {State.FINISHED, State.ABORTED, State.FAILED, State.REJECTED, State.EXPIRED}
)
LIVE: frozenset[State] = frozenset(State) - TERMINAL

# Held by an engine, or on the way to one: only its event or the loss of its lease ends these.
DISPATCHED: frozenset[State] = frozenset({State.QUEUED, State.RUNNING, State.PREEMPTED})
# Held by nobody: the compare-and-set that ends these is the whole abort.
UNDISPATCHED: frozenset[State] = frozenset({State.RECEIVED, State.HELD})


def _edges(
    from_states: Iterable[State], trigger: Trigger, to: State
) -> dict[tuple[State, Trigger], State]:
    return {(state, trigger): to for state in from_states}


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    # web
    (State.RECEIVED, Trigger.HOLD): State.HELD,
    **_edges(UNDISPATCHED, Trigger.ENQUEUE, State.QUEUED),
    **_edges({*UNDISPATCHED, State.QUEUED, State.ABORTING}, Trigger.REJECT, State.REJECTED),
    # engine, by event; an abort may have been asked for meanwhile, and the true end stands
    **_edges({State.QUEUED, State.PREEMPTED}, Trigger.SCHEDULE, State.RUNNING),
    (State.RUNNING, Trigger.PREEMPT): State.PREEMPTED,
    # a request may end in the very step that first ran it, before `schedule` was recorded
    **_edges({*DISPATCHED, State.ABORTING}, Trigger.FINISH, State.FINISHED),
    # fail and abort also end what nobody holds: a lost replica, a settled target
    **_edges(LIVE, Trigger.FAIL, State.FAILED),
    **_edges({*UNDISPATCHED, State.QUEUED, State.ABORTING}, Trigger.EXPIRE, State.EXPIRED),
    # the service of an abort
    **_edges(DISPATCHED, Trigger.ABORT_ASK, State.ABORTING),
    # its end; straight from a live state where the end is confirmed before the intent is recorded
    **_edges(LIVE, Trigger.ABORT_CONFIRM, State.ABORTED),
    # once, under a new generation, after its engine was lost before it ran
    (State.QUEUED, Trigger.REQUEUE): State.RECEIVED,
}


class IllegalTransitionError(ValueError):
    """The trigger does not apply in this state."""

    def __init__(self, state: State, trigger: Trigger) -> None:
        super().__init__(f"{trigger.value!r} does not apply to a request that is {state.value!r}")
        self.state, self.trigger = state, trigger


def advance(state: State, trigger: Trigger) -> State:
    """The state that `trigger` leads to. Raises `IllegalTransitionError` where there is none."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise IllegalTransitionError(state, trigger) from None


def sources(trigger: Trigger) -> frozenset[State]:
    """Every state in which `trigger` applies: the left side of a compare-and-set."""
    return frozenset(source for source, found in TRANSITIONS if found is trigger)
