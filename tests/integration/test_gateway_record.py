"""What the record says of requests that were refused, left or lost on their way to the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.test import AsyncClient

from gateway import submission as submission_module
from gateway.database import in_database
from gateway.line import LineTimes
from gateway.readiness import Readiness, ReadinessCheck
from gateway.relay import Relay, relay_use
from inference.errors import ContextLengthExceededError
from inference.wire import Abort, Rejected, Submit
from ledger.models import InferenceRequest
from ledger.services import abort_open
from ledger.specs import Placement
from tests.cast import Member
from tests.unit.gateway.fake_engine import FakeEngine
from tests.unit.gateway.test_relay import eventually

pytestmark = pytest.mark.django_db(transaction=True)
BODY = {"model": "tiny", "prompt": "a"}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    found = FakeEngine()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def relay(engine: FakeEngine) -> AsyncIterator[Relay]:
    found = Relay({"memory": engine.bus}, times=LineTimes(ask=0.05, longest_backoff=0.1))
    restore = relay_use(found)
    found.start()
    await eventually(lambda: found.status().ready)
    yield found
    await found.stop()
    restore()


async def complete(member: Member, **fields: Any) -> Any:
    headers: Any = {**member.headers, **fields.pop("headers", {})}
    return await AsyncClient().post(
        "/v1/completions", {**BODY, **fields}, content_type="application/json", headers=headers
    )


async def row() -> InferenceRequest:
    return await InferenceRequest.objects.aget()


async def test_it_records_what_the_engine_refuses(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    engine.accepts = False
    asking = asyncio.create_task(complete(owner))
    submit = await engine.next(Submit)
    code = ContextLengthExceededError.code
    engine.say(Rejected(key=submit.key, epoch="e1", code=code, message="too long"))
    answer = await asking
    found = await row()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert answer.json()["error"]["request_id"] == found.pk == answer["X-Haltline-Request-Id"]
    assert (found.state, found.error_code) == ("rejected", code)


async def test_it_places_again_what_could_not_be_sent(
    owner: Member, relay: Relay, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Placement(replica="r1", epoch="e0", web=relay.web)
    monkeypatch.setattr(relay, "place", lambda _model: gone)
    asking = asyncio.create_task(complete(owner))
    submit = await engine.next(Submit)
    assert submit.key.generation == 2
    found = await row()
    assert (found.state, found.epoch, found.generation) == ("queued", "e1", 2)
    engine.finish(submit.key)
    assert (await asking).status_code == 200


async def test_it_records_what_its_engine_took_with_it(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    asking = asyncio.create_task(complete(owner))
    submit = await engine.next(Submit)
    engine.output(submit.key, "abc")
    await eventually(lambda: any(box.tokens for box in relay.mailboxes))
    await engine.hang_up()
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_lost")
    found = await row()
    assert answer.json()["error"]["request_id"] == found.pk
    assert (found.state, found.error_code) == ("failed", "engine_lost")
    assert found.output_token_count == 3
    choice = await found.choices.aget()
    assert (choice.text, choice.token_ids) == ("abc", [97, 98, 99])


async def test_it_runs_again_what_its_engine_had_not_begun(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    asking = asyncio.create_task(complete(owner))
    await engine.next(Submit)
    engine.epoch = "e2"
    await engine.hang_up()
    again = await engine.next(Submit)
    engine.output(again.key, "xyz")
    engine.finish(again.key)
    answer = await asking
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "xyz")
    found = await row()
    assert (found.epoch, found.generation) == ("e2", 2)


async def test_it_tells_a_client_whose_request_is_aborted_while_no_engine_has_it(
    owner: Member, relay: Relay, engine: FakeEngine
) -> None:
    asking = asyncio.create_task(complete(owner, stream=False))
    submit = await engine.next(Submit)
    await engine.stop()
    await eventually(lambda: any(box.key.generation == 2 for box in relay.mailboxes))
    abort = await in_database(
        abort_open, caller=owner.caller, ids=[submit.key.request_id], reason="enough"
    )
    answer = await asking
    choice = answer.json()["choices"][0]
    assert (answer.status_code, choice["finish_reason"], choice["text"]) == (200, "abort", "")
    assert choice["abort"] == {"id": abort.pk, "cause": "api", "reason": "enough"}
    assert abort.state == "done"
    await eventually(lambda: relay.mailboxes == [])
    await engine.start()


async def test_it_aborts_what_its_client_left_while_the_row_was_written(
    owner: Member, relay: Relay, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    original = submission_module.services.request_open

    def slow(**words: Any) -> InferenceRequest:
        begun.set()
        assert go_on.wait(5)
        return original(**words)

    monkeypatch.setattr(submission_module.services, "request_open", slow)
    asking = asyncio.create_task(complete(owner))
    await asyncio.to_thread(begun.wait, 5)
    asking.cancel()
    go_on.set()
    submit = await engine.next(Submit)
    abort = await engine.next(Abort)
    assert abort.keys == [submit.key]
    assert (await row()).state == "queued"


async def test_it_refuses_an_id_that_is_in_use(
    owner: Member, teammate: Member, stranger: Member, relay: Relay, engine: FakeEngine
) -> None:
    asking = asyncio.create_task(complete(owner, request_id="mine"))
    submit = await engine.next(Submit)
    again = await complete(teammate, headers={"X-Request-Id": "mine"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    reserved = await complete(owner, request_id="req_1")
    assert (reserved.status_code, reserved.json()["error"]["param"]) == (400, "request_id")
    elsewhere = asyncio.create_task(complete(stranger, request_id="mine"))
    engine.finish(submit.key)
    engine.finish((await engine.next(Submit)).key)
    assert [(await one).status_code for one in (asking, elsewhere)] == [200, 200]


async def test_it_clamps_the_priority(owner: Member, relay: Relay, engine: FakeEngine) -> None:
    asking = asyncio.create_task(complete(owner, priority=50))
    submit = await engine.next(Submit)
    assert submit.priority == 0
    engine.finish(submit.key)
    assert (await asking).status_code == 200


async def test_it_writes_nothing_for_a_model_that_nobody_serves(
    owner: Member, relay: Relay
) -> None:
    answer = await complete(owner, model="another")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert await InferenceRequest.objects.acount() == 0


async def test_it_says_why_it_is_not_ready_to_operators_only(
    owner: Member, operator: Member, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(_check: ReadinessCheck) -> Readiness:
        return Readiness({"engine": "gone"})

    monkeypatch.setattr(ReadinessCheck, "look", look)
    answers = {}
    for name, headers in [("nobody", {}), ("owner", owner.headers), ("operator", operator.headers)]:
        answer = await AsyncClient().get("/health/ready", headers=headers)
        assert answer.status_code == 503
        answers[name] = answer.json()
    assert answers["nobody"] == answers["owner"] == {"status": "unready"}
    assert answers["operator"] == {"status": "unready", "problems": {"engine": "gone"}}


async def test_it_finds_out_what_does_not_answer(relay: Relay) -> None:
    found = await ReadinessCheck(relay).look()
    assert "engine" not in found.problems
    assert "database" not in found.problems


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("get", "/v1/completions", 405, "method_not_allowed"),
        ("options", "/v1/completions", 405, "method_not_allowed"),
        ("prepare", "/v1/completions", 405, "method_not_allowed"),
        ("get", "/v1/nothing", 404, "not_found"),
        ("post", "/v1/completions", 401, "invalid_api_key"),
    ],
)
async def test_it_answers_every_error_in_one_shape(
    relay: Relay, method: str, path: str, status: int, code: str
) -> None:
    answer = await AsyncClient().generic(method.upper(), path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"a"', b"model=tiny"])
async def test_it_answers_400_to_what_is_no_body(owner: Member, relay: Relay, body: bytes) -> None:
    kind = "application/x-www-form-urlencoded" if b"=" in body else "application/json"
    answer = await AsyncClient().post(
        "/v1/completions", body, content_type=kind, headers=owner.headers
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_it_tells_nothing_of_the_inside(
    owner: Member, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("/a/secret/path")

    monkeypatch.setattr(submission_module.services, "request_open", broken)
    answer = await complete(owner)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert b"secret" not in answer.content
