"""What a relay does with requests whose engine is lost: an end for what ran, a try for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from gateway.mailbox import Mailbox, coalesced
from gateway.relay import Relay
from inference.errors import EngineLostError, QueueFullError
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import State, Trigger
from inference.wire import Abort, ChoiceOutput, Outputs, Rejected, RequestKey, Submit
from tests.unit.gateway.fake_engine import FakeEngine
from tests.unit.gateway.fake_record import FakeRecord
from tests.unit.gateway.test_relay import KEY, TIMES, eventually, submission, submitted

AGAIN = RequestKey(KEY.request_id, 2)
IMPATIENT = replace(TIMES, requeue=0.2)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    found = FakeEngine()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def record() -> FakeRecord:
    return FakeRecord()


@pytest.fixture
async def relay(engine: FakeEngine, record: FakeRecord) -> AsyncIterator[Relay]:
    found = Relay({"memory": engine.bus}, times=IMPATIENT, record=record)
    found.start()
    await eventually(lambda: found.status().ready)
    yield found
    await found.stop()


async def gone(engine: FakeEngine) -> None:
    """It hangs up, and nobody listens at its address any more."""
    await engine.stop()


async def the_end(mailbox: Mailbox) -> list[ChoiceOutput]:
    """All that comes, one output per choice."""
    outputs: list[ChoiceOutput] = []
    async with asyncio.timeout(5):
        while some := await mailbox.drain():
            outputs += some
    return coalesced(outputs)


async def test_it_ends_what_had_begun_with_what_had_come(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay, submission(n=2))
    engine.output(KEY, "abc")
    engine.finish(KEY, index=1)
    await eventually(lambda: mailbox.tokens == 3 and mailbox.progress[1].finish_reason)
    await engine.hang_up()
    first, other = await the_end(mailbox)
    assert (first.text, first.finish_reason, first.error_code) == ("abc", "error", "engine_lost")
    assert other.finish_reason == "stop"
    ends = record.rows["req_1"].choices
    assert [(end.text, end.finish_reason) for end in ends] == [("abc", "error"), ("", "stop")]
    assert record.lost == [("e1", {"req_1": 3})]
    assert relay.mailboxes == []


async def test_it_places_what_had_not_begun_at_the_engine_that_came_back(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    await engine.next(Submit)
    engine.epoch = "e2"
    await engine.hang_up()
    again = await engine.next(Submit)
    assert again == msgspec.structs.replace(submission(), key=AGAIN)
    ((key, placement),) = record.placed
    assert (key, placement.epoch, placement.web) == (AGAIN, "e2", relay.web)
    engine.output(KEY, "of the first")
    engine.output(AGAIN, "x")
    engine.finish(AGAIN)
    assert [output.text for output in await the_end(mailbox)] == ["x"]
    assert record.rows == {}


async def test_it_places_it_elsewhere(record: FakeRecord) -> None:
    first, second = FakeEngine(), FakeEngine(epoch="other")
    await first.start()
    relay = Relay({"one": first.bus, "two": second.bus}, times=IMPATIENT, record=record)
    relay.start()
    await eventually(lambda: relay.status().ready)
    mailbox = await submitted(relay)
    await second.start()
    await gone(first)
    await second.next(Submit)
    second.finish(AGAIN)
    assert [output.finish_reason for output in await the_end(mailbox)] == ["stop"]
    await relay.stop()
    await second.stop()


async def test_it_waits_with_a_submission_that_no_engine_has_taken_yet(
    relay: Relay, engine: FakeEngine
) -> None:
    engine.accepts = False
    asking = asyncio.create_task(submitted(relay))
    await engine.next(Submit)
    engine.accepts = True
    await engine.hang_up()
    mailbox = await asking
    assert mailbox.key == AGAIN


async def test_it_sends_to_another_engine_what_was_placed_at_one_that_is_gone(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    old = replace(relay.place("tiny"), epoch="e0")
    mailbox = await relay.submit(old, submission())
    assert mailbox.key == AGAIN
    assert [epoch for epoch, _ in record.lost] == ["e0"]


async def test_it_sends_nothing_whose_placement_is_too_old(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await relay.submit(relay.place("tiny"), submission(), is_late=True)
    assert (await engine.next(Submit)).key == mailbox.key == AGAIN


async def test_it_does_not_wait_for_another_engine_for_ever(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    engine.accepts = False
    asking = asyncio.create_task(submitted(relay, submission(RequestKey("req_2", 1))))
    await eventually(lambda: len(relay.mailboxes) == 2)
    await gone(engine)
    with pytest.raises(EngineLostError) as caught:
        await asking
    assert caught.value.request_id == "req_2"
    (end,) = await the_end(mailbox)
    assert (end.finish_reason, end.error_code) == ("error", "engine_lost")
    assert {row.state for row in record.rows.values()} == {State.FAILED}
    assert relay.mailboxes == []
    await engine.start()


async def test_it_requeues_once(relay: Relay, engine: FakeEngine, record: FakeRecord) -> None:
    mailbox = await submitted(relay)
    await engine.next(Submit)
    await engine.hang_up()
    await engine.next(Submit)
    await engine.hang_up()
    (end,) = await the_end(mailbox)
    assert (end.key, end.error_code) == (AGAIN, "engine_lost")


async def test_it_settles_what_its_client_leaves_meanwhile(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    await gone(engine)
    await eventually(lambda: mailbox.key == AGAIN)
    mailbox.close()
    await eventually(lambda: record.rows)
    (end,) = record.rows["req_1"].choices
    assert end.abort is not None
    assert end.abort.cause is AbortCause.CLIENT_DISCONNECTED
    await eventually(lambda: relay.mailboxes == [])
    await engine.start()


async def test_it_stops_what_waits_when_the_process_ends(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    await gone(engine)
    await eventually(lambda: mailbox.key == AGAIN)
    relay.drain()
    relay.abort_all(AbortCause.SHUTDOWN)
    (end,) = await the_end(mailbox)
    assert (end.finish_reason, end.abort and end.abort.cause) == ("abort", "shutdown")
    await engine.start()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("deadline", FinishReason.ABORT), ("queue_deadline", FinishReason.EXPIRED)],
)
async def test_it_lets_deadlines_run_on_while_a_request_waits(
    relay: Relay, engine: FakeEngine, limit: str, reason: FinishReason
) -> None:
    mailbox = await submitted(relay, msgspec.structs.replace(submission(), **{limit: 0.1}))
    await gone(engine)
    (end,) = await the_end(mailbox)
    assert end.finish_reason is reason
    await engine.start()


async def test_it_gives_an_engine_what_is_left_of_a_deadline(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await submitted(relay, msgspec.structs.replace(submission(), deadline=60.0))
    assert (await engine.next(Submit)).deadline == 60.0
    mailbox.began_at -= 20.0
    await engine.hang_up()
    left = (await engine.next(Submit)).deadline
    assert left is not None
    assert 30.0 < left < 40.0


async def test_it_obeys_an_abort_that_came_first(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    await engine.next(Submit)
    await record.settle([KEY], trigger=Trigger.ABORT_CONFIRM, fields={"cause": "api"})
    await engine.hang_up()
    (end,) = await the_end(mailbox)
    assert (end.finish_reason, end.abort and end.abort.cause) == ("abort", "api")
    await eventually(lambda: relay.status().ready)
    assert not any(isinstance(message, Submit) for message in engine.heard)


async def test_it_tells_clients_even_if_the_record_is_out_of_reach(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    record.broken = OSError("no database")
    await engine.hang_up()
    assert await the_end(mailbox) == []
    assert isinstance(mailbox.lost, EngineLostError)
    assert relay.mailboxes == []


async def test_it_ends_a_response_that_the_second_engine_refuses(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await submitted(relay)
    await engine.next(Submit)
    engine.accepts = False
    await engine.hang_up()
    await engine.next(Submit)
    code = QueueFullError.code
    engine.say(Rejected(key=AGAIN, epoch="e1", code=code, message="full"))
    assert await the_end(mailbox) == []
    assert isinstance(mailbox.lost, QueueFullError)


async def test_it_does_not_mistake_the_old_generation_for_the_new_one(
    relay: Relay, engine: FakeEngine
) -> None:
    mailbox = await submitted(relay)
    await engine.next(Submit)
    await engine.hang_up()
    await engine.next(Submit)
    end = ChoiceOutput(key=KEY, index=0, finish_reason=FinishReason.ABORT)
    engine.say(Outputs(epoch="e1", step=1, items=[end]))
    engine.output(AGAIN, "y")
    engine.finish(AGAIN)
    (output,) = await the_end(mailbox)
    assert (output.text, output.finish_reason) == ("y", "stop")
    mailbox.close()
    assert not any(isinstance(message, Abort) for message in engine.heard)
