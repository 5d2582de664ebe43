"""Events on their way to the ledger: coalesced, bounded, kept while the broker is away."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inference.events import (
    ReplicaBeat,
    RequestEvent,
    TimelineEntry,
    beat_from_json,
    events_from_json,
)
from inference.wire import RequestKey, Status
from inference.worker.ledger_events import BATCH_EVENTS, BEAT_TASK, EVENTS_TASK, Publisher

STATUS = Status(
    call=0, epoch="e", replica="engine-0", model="m", running=1, waiting=0, free_slots=1,
    total_slots=2, free_blocks=3, total_blocks=4, steps=5, last_step_seconds=0.1,
    uptime_seconds=1.0,
)  # fmt: skip


class Broker:
    """Takes tasks when it is `up`, in the publisher's thread."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.tasks: list[tuple[str, Any]] = []
        self.refusals = 0
        self._changed = threading.Condition()

    def __call__(self, task: str, argument: Any) -> None:
        with self._changed:
            self._changed.notify_all()
            if not self.up:
                self.refusals += 1
                raise ConnectionError("no broker")
            self.tasks.append((task, argument))

    def until_refused(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.refusals > 0, 5)

    @property
    def events(self) -> list[RequestEvent]:
        batches = [events_from_json(batch) for task, batch in self.tasks if task == EVENTS_TASK]
        return [event for batch in batches for event in batch]


def event(name: str, entries: int = 1) -> RequestEvent:
    timeline = [TimelineEntry(seq=number + 1, at=float(number)) for number in range(entries)]
    return RequestEvent(key=RequestKey(name, 1), replica="engine-0", epoch="e", timeline=timeline)


def test_it_sends_what_was_recorded_in_order() -> None:
    broker = Broker()
    publisher = Publisher(broker, coalesce=0.0)
    publisher.start()
    for name in ("a", "b", "c"):
        publisher.record([event(name)])
    assert publisher.close(within=5)
    assert broker.events == [event("a"), event("b"), event("c")]


def test_it_sends_only_the_newest_of_what_waits() -> None:
    broker = Broker()
    publisher = Publisher(broker)
    publisher.record([event("a"), event("b")])
    publisher.record([event("a", 2)])
    publisher.start()
    assert publisher.close(within=5)
    assert broker.events == [event("b"), event("a", 2)]
    assert len(broker.tasks) == 1


def test_it_keeps_everything_while_the_broker_is_away() -> None:
    broker = Broker(up=False)
    publisher = Publisher(broker, coalesce=0.0)
    publisher.start()
    publisher.record([event("a")])
    broker.until_refused()
    publisher.record([event("a", 2), event("b")])
    broker.up = True
    assert publisher.close(within=5)
    assert broker.events == [event("a", 2), event("b")]


def test_it_does_not_wait_for_ever_for_a_broker_that_stays_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher = Publisher(Broker(up=False))
    publisher.start()
    publisher.record([event("a")])
    assert not publisher.close(within=0.05)
    assert "1 events" in caplog.text


def test_it_drops_the_oldest_above_its_bound_and_counts_them() -> None:
    publisher = Publisher(None, limit=10)
    publisher.record([event(str(number)) for number in range(25)])
    assert [waiting.key.request_id for waiting in publisher.waiting] == [
        str(number) for number in range(15, 25)
    ]
    assert publisher.dropped == 15


def test_it_cuts_a_flood_into_tasks_of_bearable_size() -> None:
    broker = Broker()
    publisher = Publisher(broker)
    publisher.record([event(str(number)) for number in range(BATCH_EVENTS + 1)])
    publisher.start()
    assert publisher.close(within=5)
    assert [len(batch) for _, batch in broker.tasks] == [BATCH_EVENTS, 1]


def test_it_sends_the_newest_heartbeat_only() -> None:
    broker = Broker()
    publisher = Publisher(broker)
    for at in (1.0, 2.0):
        publisher.beat(ReplicaBeat(status=STATUS, bus_url="unix:/x", at=at))
    publisher.start()
    assert publisher.close(within=5)
    [(task, argument)] = broker.tasks
    assert task == BEAT_TASK
    assert beat_from_json(argument).at == 2.0
