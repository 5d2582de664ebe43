"""Ends that no engine announces reach whoever waits: by a push, or by looking at the record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from channels.layers import get_channel_layer

from gateway import ends as ends_module
from gateway.relay import Relay
from inference.errors import EngineLostError
from inference.events import ChoiceEnd
from inference.generation import AbortCause, FinishReason, TokenLogprob, TokenLogprobs
from inference.lifecycle import State
from inference.wire import Abort, AbortInfo, RequestKey, Submit
from ledger.push import ENDED, web_group_of
from tests.unit.gateway.fake_engine import FakeEngine
from tests.unit.gateway.fake_record import LOST, FakeRecord
from tests.unit.gateway.test_relay import KEY, TIMES, eventually, submission, submitted

ABORT = AbortInfo(id="abt_1", cause=AbortCause.API, reason="enough")
NEVER = 1000.0


@pytest.fixture(autouse=True)
def in_memory(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


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
def silent() -> float:
    """Seconds before the record is looked at."""
    return 0.1


@pytest.fixture
async def relay(engine: FakeEngine, record: FakeRecord, silent: float) -> AsyncIterator[Relay]:
    times = replace(TIMES, silent=silent)
    found = Relay({"memory": engine.bus}, times=times, record=record)
    found.start()
    await eventually(lambda: found.status().ready)
    yield found
    await found.stop()


def aborted(*, text: str = "", tokens: int = 0) -> ChoiceEnd:
    ids = list(range(tokens))
    return ChoiceEnd(
        index=0, finish_reason=FinishReason.ABORT, text=text, token_ids=ids, abort=ABORT
    )


async def pushed(relay: Relay, *request_ids: str) -> None:
    message = {"type": ENDED, "request_ids": list(request_ids)}
    await get_channel_layer().group_send(web_group_of(relay.web), message)


async def listening(relay: Relay) -> None:
    await eventually(lambda: web_group_of(relay.web) in get_channel_layer().groups)


async def test_it_finds_the_end_of_a_request_that_is_silent(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    record.end("req_1", aborted())
    (output,) = await mailbox.drain()
    assert (output.finish_reason, output.abort) == ("abort", ABORT)
    assert await mailbox.drain() == []


@pytest.mark.parametrize("silent", [NEVER])
async def test_it_hears_of_an_end_by_a_push(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    await listening(relay)
    record.end("req_1", aborted())
    await pushed(relay, "req_9", "req_1")
    (output,) = await mailbox.drain()
    assert output.finish_reason == "abort"
    assert record.looks == 0


@pytest.mark.parametrize("silent", [NEVER])
async def test_it_listens_again_after_the_broker_was_away(
    engine: FakeEngine, record: FakeRecord, monkeypatch: pytest.MonkeyPatch, silent: float
) -> None:
    def away() -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr(ends_module, "get_channel_layer", away)
    relay = Relay({"memory": engine.bus}, times=replace(TIMES, silent=0.1), record=record)
    relay.start()
    await eventually(lambda: relay.status().ready)
    monkeypatch.undo()
    await listening(relay)
    await relay.stop()


async def test_it_gives_only_what_has_not_arrived(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    engine.output(KEY, "ab")
    await eventually(lambda: mailbox.tokens == 2)
    entries = [TokenLogprobs(TokenLogprob(n, str(n), -1.0)) for n in range(5)]
    end = ChoiceEnd(
        index=0,
        finish_reason=FinishReason.LENGTH,
        text="abcde",
        token_ids=[0, 1, 2, 3, 4],
        logprobs=entries,
    )
    record.end("req_1", end, state=State.FINISHED)
    await eventually(lambda: mailbox.ended)
    (output,) = await mailbox.drain()
    assert (output.text, output.token_ids[-3:]) == ("abcde", [2, 3, 4])
    assert output.logprobs == entries[2:]
    engine.finish(KEY)
    assert await mailbox.drain() == []


async def test_it_waits_for_output_that_the_record_does_not_keep(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    """Without content retention, only the engine can tell what is still on its way."""
    mailbox = await submitted(relay)
    record.end("req_1", ChoiceEnd(index=0, finish_reason=FinishReason.STOP), state=State.FINISHED)
    record.rows["req_1"] = replace(record.rows["req_1"], counts=[2])
    looks = record.looks
    await eventually(lambda: record.looks > looks + 1)
    assert not mailbox.ended
    engine.output(KEY, "ab")
    (output,) = await mailbox.drain()
    assert output.text == "ab"
    await eventually(lambda: mailbox.ended)


async def test_it_stops_the_engine_that_still_runs_what_has_ended(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    await submitted(relay)
    record.end("req_1", aborted())
    abort = await engine.next(Abort)
    assert (abort.keys, abort.info.cause) == ([KEY], AbortCause.API)


async def test_it_ends_a_submission_that_no_engine_answers(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    engine.accepts = False
    asking = asyncio.create_task(submitted(relay))
    await engine.next(Submit)
    lost = ChoiceEnd(index=0, finish_reason=FinishReason.ERROR, error_code=LOST)
    record._write("req_1", State.FAILED, [lost], error_code=LOST)
    with pytest.raises(EngineLostError) as caught:
        await asking
    assert caught.value.request_id == "req_1"


async def test_it_does_not_look_at_what_is_not_silent(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    mailbox.last_arrival = asyncio.get_running_loop().time() + 0.3
    await eventually(lambda: record.looks)
    assert asyncio.get_running_loop().time() > mailbox.last_arrival


async def test_it_looks_at_all_that_are_silent_at_once(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    keys = [RequestKey(f"req_{number}", 1) for number in range(20)]
    boxes = [await submitted(relay, submission(key)) for key in keys]
    now = asyncio.get_running_loop().time()
    for box in boxes:
        box.last_arrival = box.last_look = now
    before = record.looks
    await eventually(lambda: all(box.last_look > now for box in boxes))
    assert record.looks == before + 1


async def test_it_looks_again_after_the_database_was_away(
    relay: Relay, engine: FakeEngine, record: FakeRecord
) -> None:
    mailbox = await submitted(relay)
    record.broken = OSError("no database")
    record.end("req_1", aborted())
    await eventually(lambda: record.failures > 1)
    assert not mailbox.ended
    record.broken = None
    (output,) = await mailbox.drain()
    assert output.finish_reason == "abort"
