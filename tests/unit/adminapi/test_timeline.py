"""The drawn timeline: phases from transitions, bars from phases, words for durations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from adminapi.console.timeline import NARROWEST, WIDTH, Phase, bars, duration, phases
from adminapi.console.tones import (
    CAUSE_TONES,
    FINISH_TONES,
    OUTCOME_TONES,
    REPLICA_TONES,
    STATE_TONES,
)
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import State
from ledger.models import AbortTarget, Replica

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Step:
    to_state: str
    at: datetime
    choice_index: int | None = None


def step(state: str, seconds: float, *, choice: int | None = None) -> Step:
    return Step(state, at(seconds), choice)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def told(found: list[Phase]) -> list[tuple[str, float, float]]:
    return [(phase.name, round(phase.start, 6), round(phase.seconds, 6)) for phase in found]


def test_it_splits_running_where_the_first_token_came() -> None:
    steps = [step("received", 0), step("queued", 0.1), step("running", 1), step("finished", 4)]
    found = phases(steps, first_token_at=at(2), now=at(4))
    assert told(found) == [
        ("received", 0, 0.1),
        ("queued", 0.1, 0.9),
        ("prefill", 1, 1),
        ("decode", 2, 2),
    ]


def test_it_goes_on_until_now_while_a_request_lives() -> None:
    steps = [step("received", 0), step("queued", 0.5)]
    assert told(phases(steps, first_token_at=None, now=at(3)))[-1] == ("queued", 0.5, 2.5)


def test_it_shows_preemption_and_aborting() -> None:
    steps = [
        step("received", 0),
        step("queued", 0),
        step("running", 1),
        step("preempted", 3),
        step("running", 4),
        step("aborting", 6),
        step("aborted", 6.2),
    ]
    names = [phase.name for phase in phases(steps, first_token_at=at(2), now=at(6.2))]
    assert names == [
        "received", "queued", "prefill", "decode", "preempted", "decode", "aborting",
    ]  # fmt: skip


def test_it_leaves_out_the_ends_of_single_choices() -> None:
    steps = [step("received", 0), step("finished", 1, choice=0), step("queued", 2)]
    assert [phase.name for phase in phases(steps, first_token_at=None, now=at(3))] == [
        "received",
        "queued",
    ]


def test_it_never_shows_less_than_nothing() -> None:
    steps = [step("received", 1), step("queued", 0.9)]
    assert all(phase.seconds >= 0 for phase in phases(steps, first_token_at=None, now=at(0)))


def test_it_shows_nothing_where_nothing_is_recorded() -> None:
    assert phases([], first_token_at=None, now=at(0)) == []
    assert bars([]) == []


def test_it_fills_the_width_and_hides_no_short_phase() -> None:
    drawn = bars([Phase("queued", 0, 0.0001), Phase("decode", 0.0001, 100.0)])
    widths = [float(bar.width) for bar in drawn]
    assert sum(widths) == pytest.approx(WIDTH, abs=0.1)
    assert widths[0] > NARROWEST * 0.9
    assert float(drawn[1].x) == pytest.approx(widths[0], abs=0.01)


def test_it_draws_a_life_without_duration() -> None:
    assert [bar.width for bar in bars([Phase("received", 0, 0), Phase("queued", 0, 0)])] == [
        "500.00",
        "500.00",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1, "0 ms"),
        (0.0042, "4 ms"),
        (0.9999, "1.00 s"),
        (1.25, "1.25 s"),
        (59.94, "59.9 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_it_tells_a_duration_as_a_person_reads_it(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_it_has_a_colour_for_every_word_of_the_machine() -> None:
    assert set(STATE_TONES) == set(State)
    assert set(FINISH_TONES) == set(FinishReason)
    assert set(CAUSE_TONES) == set(AbortCause)
    assert set(OUTCOME_TONES) == set(AbortTarget.Outcome.values)
    assert set(REPLICA_TONES) >= set(Replica.State.values)
