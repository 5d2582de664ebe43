"""Followers of a request: what they get when the engine is not there yet, refuses, or goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import InMemoryChannelLayer
from django.test import AsyncClient

from gateway import waiting
from gateway.following import Told, follow
from gateway.line import LineTimes
from gateway.orders import response_order
from gateway.relay import Relay, relay_use
from inference.errors import NotFoundError
from inference.generation import FinishReason
from inference.lifecycle import Trigger
from inference.wire import Attach, Outputs, Rejected, RequestKey
from ledger import services
from ledger.models import InferenceRequest
from tests.cast import Member
from tests.unit.gateway.fake_engine import FakeEngine
from tests.unit.gateway.test_relay import eventually
from tests.unit.ledger.engine import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def layer(monkeypatch: pytest.MonkeyPatch) -> InMemoryChannelLayer:
    found = InMemoryChannelLayer()
    monkeypatch.setattr(waiting, "get_channel_layer", lambda: found)
    return found


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    found = FakeEngine()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def relay(engine: FakeEngine) -> AsyncIterator[Relay]:
    found = Relay({"memory": engine.bus}, times=LineTimes(ask=60.0, longest_backoff=0.1))
    restore = relay_use(found)
    found.start()
    await eventually(lambda: found.status().ready)
    yield found
    await found.stop()
    restore()


@dataclass
class Reader:
    """Somebody who follows, in a task of its own."""

    request_id: str
    relay: Relay
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for news in follow(self.request_id, relay=self.relay):
            self.told.append(news)

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.told)

    async def end(self) -> FinishReason | None:
        await asyncio.wait_for(self.task, 10)
        outcome = self.told[-1].outcome if self.told else None
        return outcome.finish_reason if outcome is not None else None


def _received(member: Member) -> InferenceRequest:
    asked = {"model": "tiny", "input": "hello", "background": True}
    spec = response_order(asked, client_id="").new_request()
    return services.request_receive(caller=member.caller, spec=spec)


def _place(row: InferenceRequest, relay: Relay) -> None:
    place = relay.place("tiny")
    services.request_advance(
        request_id=row.pk,
        generation=1,
        trigger=Trigger.ENQUEUE,
        actor="tasks",
        fields={"replica": place.replica, "epoch": place.epoch},
    )
    row.refresh_from_db()


received, place = sync_to_async(_received), sync_to_async(_place)
advance, events_record = (
    sync_to_async(services.request_advance),
    sync_to_async(services.events_record),
)


def key_of(row: InferenceRequest) -> RequestKey:
    return RequestKey(row.pk, 1)


def unknown(row: InferenceRequest) -> Rejected:
    return Rejected(key=key_of(row), epoch="e1", code="not_found", message="no such request")


async def test_it_waits_for_an_engine_and_follows_it(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    reader = Reader(row.pk, relay)
    await place(row, relay)
    assert (await engine.next(Attach)).key == key_of(row)
    engine.output(key_of(row), "abc")
    await eventually(lambda: reader.text == "abc")
    engine.output(RequestKey(row.pk, 2), "another generation")
    engine.finish(key_of(row), text="de")
    assert await reader.end() is FinishReason.STOP
    assert reader.text == "abcde"


async def test_it_asks_again_where_the_engine_has_it_not_yet(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    await place(row, relay)
    reader = Reader(row.pk, relay)
    for _ in range(2):
        await engine.next(Attach)
        engine.say(unknown(row))
    await engine.next(Attach)
    engine.finish(key_of(row), text="ab")
    assert await reader.end() is FinishReason.STOP
    assert reader.text == "ab"


async def test_it_reads_the_end_of_what_the_engine_has_forgotten(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    await place(row, relay)
    run = Run.of(row)
    run.schedule()
    await events_record(events=[run.finish(tokens=4)])
    reader = Reader(row.pk, relay)
    assert await reader.end() is FinishReason.STOP
    assert reader.text == "xxxx"
    assert not any(isinstance(one, Attach) for one in engine.heard)


async def test_it_hears_of_an_end_that_no_engine_tells_its_followers(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    await place(row, relay)
    reader = Reader(row.pk, relay)
    await engine.next(Attach)
    words = {"error_code": "context_length_exceeded", "error_message": "too long"}
    await advance(
        request_id=row.pk, generation=1, trigger=Trigger.REJECT, actor="engine", fields=words
    )
    assert await reader.end() is FinishReason.ERROR
    outcome = reader.told[-1].outcome
    assert outcome is not None
    assert (outcome.error_code, outcome.error_message) == ("context_length_exceeded", "too long")


async def test_it_tells_the_rest_from_the_record_after_a_break(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    await place(row, relay)
    reader = Reader(row.pk, relay)
    await engine.next(Attach)
    engine.output(key_of(row), "xx")
    await eventually(lambda: reader.text == "xx")
    await engine.hang_up()
    await engine.next(Attach)  # the line is new: the engine replays it all
    engine.output(key_of(row), "xxx")
    await eventually(lambda: reader.text == "xxx")
    await engine.hang_up()
    run = Run.of(row)
    run.schedule()
    await events_record(events=[run.finish(tokens=5)])
    assert await reader.end() is FinishReason.STOP
    assert reader.text == "xxxxx"


async def test_it_leaves_when_this_process_ends(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    row = await received(owner)
    await place(row, relay)
    reader = Reader(row.pk, relay)
    await engine.next(Attach)
    engine.output(key_of(row), "ab")
    await eventually(lambda: reader.text == "ab")
    relay.drain()
    assert await reader.end() is None
    assert engine.aborts == []


async def test_it_ends_nothing_by_leaving(
    owner: Member, relay: Relay, engine: FakeEngine, layer: InMemoryChannelLayer
) -> None:
    row = await received(owner)
    await place(row, relay)
    reader = Reader(row.pk, relay)
    await engine.next(Attach)
    reader.task.cancel()
    await asyncio.wait({reader.task})
    assert engine.aborts == []
    assert layer.groups.get(f"changes.request.{row.pk}", {}) == {}


async def test_it_ends_with_the_record(owner: Member, relay: Relay) -> None:
    row = await received(owner)
    reader = Reader(row.pk, relay)
    await row.adelete()
    with pytest.raises(NotFoundError):
        await reader.end()


async def test_it_streams_over_http_what_it_is_told(
    owner: Member, relay: Relay, engine: FakeEngine, stranger: Member
) -> None:
    row = await received(owner)
    await place(row, relay)
    path = f"/v1/responses/{row.pk.replace('req_', 'resp_')}"
    strange: Any = stranger.headers
    mine: Any = owner.headers
    assert (await AsyncClient().get(path, headers=strange)).status_code == 404
    answer: Any = await AsyncClient().get(path, {"stream": "true"}, headers=mine)
    reading = asyncio.create_task(_all(answer.streaming_content))
    await engine.next(Attach)
    engine.output(key_of(row), "ab")
    engine.say(Outputs(epoch="e1", step=2, items=[]))
    engine.finish(key_of(row), text="c")
    body = await asyncio.wait_for(reading, 10)
    assert body.count(b"event: response.created") == 1
    assert b'"text":"abc"' in body
    assert body.rstrip().rpartition(b"event: ")[2].startswith(b"response.completed")


async def _all(content: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in content])
