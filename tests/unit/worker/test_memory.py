"""What the worker remembers, for how long, and what is due when."""

from __future__ import annotations

from typing import Any

from inference.bus.memory import MemoryConnection
from inference.generation import SamplingParams
from inference.wire import RequestKey, Submit, TextPrompt
from inference.worker.clock import EngineClock
from inference.worker.deadlines import SLACK, DeadlineKind, Deadlines
from inference.worker.recall import Recall
from inference.worker.request import Choice, Request, Stage
from inference.worker.session import Session
from tests.doubles.clock import FakeClock

SESSION = Session(MemoryConnection("web", limit=1), "web")


def request(name: str, *, arrived_at: float = 0.0, **fields: Any) -> Request:
    submit = Submit(
        key=RequestKey(name, 1),
        model="m",
        prompts=[TextPrompt("x")],
        params=SamplingParams(),
        **fields,
    )
    return Request(submit, submitter=SESSION, arrived_at=arrived_at, num_choices=submit.n)


def test_it_forgets_after_its_time() -> None:
    clock = FakeClock()
    recall: Recall[str, int] = Recall(seconds=60.0, limit=10, clock=clock)
    recall.put("a", 1)
    clock.advance(30.0)
    recall.put("b", 2)
    assert (recall.get("a"), "b" in recall, len(recall)) == (1, True, 2)
    clock.advance(30.0)
    assert (recall.get("a"), recall.get("b")) == (None, 2)
    assert recall.pop("b") == 2
    assert len(recall) == 0


def test_it_forgets_the_oldest_above_its_limit() -> None:
    """Case 14: any number of unknown ids takes a bounded memory."""
    recall: Recall[int, None] = Recall(seconds=60.0, limit=100, clock=FakeClock())
    for number in range(10_000):
        recall.put(number, None)
    assert len(recall) == 100
    assert 9_900 in recall
    assert 9_899 not in recall


def test_it_counts_the_time_of_a_repeated_key_anew() -> None:
    clock = FakeClock()
    recall: Recall[str, int] = Recall(seconds=60.0, limit=2, clock=clock)
    recall.put("a", 1)
    recall.put("b", 2)
    clock.advance(50.0)
    recall.put("a", 3)
    clock.advance(20.0)
    assert (recall.get("a"), recall.get("b")) == (3, None)


def test_its_clock_never_runs_backwards() -> None:
    wall, ticks = FakeClock(5_000.0), FakeClock(10.0)
    clock = EngineClock(wall=wall, ticks=ticks)
    ticks.advance(2.0)
    wall.advance(-100.0)
    assert clock.now() == 5_002.0
    assert clock.uptime == 2.0


def test_it_gives_deadlines_soonest_first() -> None:
    deadlines = Deadlines()
    late, soon = request("late", deadline=9.0), request("soon", deadline=4.0, queue_deadline=2.0)
    for one in (late, soon):
        deadlines.watch(one)
    assert deadlines.next_at == 2.0
    found = [(deadline.request, deadline.kind) for deadline in deadlines.due(4.0)]
    assert found == [(soon, DeadlineKind.QUEUE), (soon, DeadlineKind.TOTAL)]
    assert deadlines.next_at == 9.0


def test_it_passes_over_deadlines_that_do_not_matter_any_more() -> None:
    deadlines = Deadlines()
    started, ended = request("started", queue_deadline=1.0), request("ended", deadline=1.0)
    for one in (started, ended):
        deadlines.watch(one)
    started.was_scheduled = True
    ended.stage = Stage.ENDED
    assert deadlines.next_at is None
    assert list(deadlines.due(10.0)) == []


def test_it_keeps_no_deadlines_of_requests_that_ended() -> None:
    deadlines = Deadlines()
    deadlines.watch(request("first", deadline=1.0))
    for number in range(20 * SLACK):
        one = request(str(number), deadline=3_600.0)
        deadlines.watch(one)
        one.stage = Stage.ENDED
    assert len(deadlines) <= 2 * SLACK + 2


def test_it_knows_the_text_after_each_token() -> None:
    choice = Choice(0)
    choice.take([1], "a", None)
    choice.take([2], "", None)  # half a character
    choice.take([3], "éb", None)
    choice.take([], "c", None)  # what was held back
    assert [choice.text_after(token) for token in range(5)] == ["aébc", "ébc", "ébc", "c", "c"]
    assert Choice(0).text_after(3) == ""


def test_it_numbers_a_timeline_without_gaps_and_never_backwards() -> None:
    one = request("one")
    for at in (3.0, 2.0, 5.0):
        one.log(at)
    assert [(entry.seq, entry.at) for entry in one.timeline] == [(1, 3.0), (2, 3.0), (3, 5.0)]
