"""`/v1/responses` by the official client: web, Celery, broker and worker are real."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.acceptance.stack import free_port
from tests.integration.gateway_server import MODEL
from tests.integration.task_server import TaskServer, serving_tasks
from tests.processes import wait_until

pytestmark = pytest.mark.processes
LONG = 15_000
OVER = {"completed", "failed", "cancelled", "incomplete"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[TaskServer]:
    home: Path = tmp_path_factory.mktemp("responses") / "home"
    with serving_tasks(home, step_delay=0.005) as running:
        yield running


@pytest.fixture
def client(server: TaskServer) -> openai.OpenAI:
    return server.openai()


@pytest.fixture(autouse=True)
def nothing_left(server: TaskServer) -> Iterator[None]:
    yield
    wait_until(lambda: server.engine.is_idle, what="the engine still works")
    with server.http() as http:
        # The record hears of an end later than the client.
        wait_until(lambda: running_of(http) == [], what="the record still holds it as running")


def running_of(http: httpx.Client) -> list[Any]:
    answer = http.get("/v1/requests", params={"state": "running"})
    found: list[Any] = answer.json()["data"]
    return found


def background(client: openai.OpenAI, **more: Any) -> Any:
    fields = {"model": MODEL, "input": "hello", "max_output_tokens": LONG, **more}
    return client.responses.create(background=True, **fields)


def ended(client: openai.OpenAI, response_id: str) -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found.append(client.responses.retrieve(response_id))
        return found[-1].status in OVER

    wait_until(is_over, what="it does not end")
    return found[-1]


def record(server: TaskServer, response_id: str) -> dict[str, Any]:
    with server.http() as http:
        found: dict[str, Any] = http.get(f"/v1/requests/{response_id}").raise_for_status().json()
    return found


def running(server: TaskServer, response_id: str) -> None:
    wait_until(lambda: record(server, response_id)["state"] == "running", what="it does not run")


def deltas(events: list[Any]) -> str:
    return "".join(e.delta for e in events if e.type == "response.output_text.delta")


# -- somebody waits


def test_it_answers_whole(client: openai.OpenAI, server: TaskServer) -> None:
    answer = client.responses.create(
        model=MODEL, input="hello", instructions="be brief", max_output_tokens=7, store=True
    )
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.background) == ("incomplete", False)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert len(answer.output_text) == 7
    assert answer.usage is not None
    assert answer.usage.output_tokens == 7
    assert answer.usage.total_tokens == answer.usage.input_tokens + 7
    assert answer.instructions == "be brief"
    again = ended(client, answer.id)
    assert (again.output_text, again.usage) == (answer.output_text, answer.usage)
    assert again.instructions == "be brief"


def test_it_streams_what_it_would_answer(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": "hello", "max_output_tokens": 30}
    whole = client.responses.create(**ask)
    events: list[Any] = list(client.responses.create(**ask, stream=True))
    assert [e.type for e in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [e.type for e in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert deltas(events) == whole.output_text == events[-1].response.output_text
    numbers = [e.sequence_number for e in events]
    assert numbers == sorted(set(numbers))


def test_it_works_with_the_client_s_own_accumulator(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": "hello", "extra_body": {"stop": ["e"]}}
    with client.responses.stream(**ask) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert seen[-1] == "response.completed"
    assert final.status == "completed"
    assert final.output_text == client.responses.create(**ask).output_text
    ended(client, final.id)
    with client.responses.stream(response_id=final.id) as replay:
        assert replay.get_final_response().output_text == final.output_text


def test_it_takes_its_own_answer_as_input(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="hello", max_output_tokens=5)
    talk: list[Any] = [{"role": "user", "content": "hello"}]
    talk += [item.model_dump(exclude_none=True) for item in first.output]
    talk += [{"role": "user", "content": [{"type": "input_text", "text": "and?"}]}]
    second = client.responses.create(model=MODEL, input=talk, max_output_tokens=5)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"background": True, "store": False}, "background"),
    ],
)
def test_it_names_the_field_that_is_wrong(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="a", extra_body=fields)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_it_takes_no_background_work_that_nobody_serves(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        background(client, model="another")
    assert caught.value.code == "model_not_found"


def test_it_says_cancelled_to_a_client_that_waits(
    client: openai.OpenAI, server: TaskServer
) -> None:
    """An aborted synchronous response says so, whole and streamed, through any abort."""
    answers: list[Any] = []
    fields = {"model": MODEL, "input": "a", "max_output_tokens": LONG}
    headers = {"X-Request-Id": "sync-1"}
    waiting = threading.Thread(
        target=lambda: answers.append(
            client.responses.create(**fields, extra_headers=headers)  # type: ignore[call-overload]
        )
    )
    waiting.start()
    wait_until(lambda: bool(server.engine.running.registry.running), what="it does not run")
    with server.http() as http:
        abort = {"req_ids": ["sync-1"], "reason": "enough"}
        assert http.post("/v1/abort_requests", json=abort).status_code == 202
    waiting.join(10)
    (answer,) = answers
    assert answer.status == "cancelled"
    assert answer.abort["cause"] == "api"
    assert answer.abort["reason"] == "enough"
    assert answer.usage.output_tokens == len(answer.output_text) > 0
    stream: Any = client.responses.create(**fields, stream=True)  # type: ignore[call-overload]
    events = [next(stream) for _ in range(6)]
    cancelled = client.responses.cancel(events[0].response.id)
    events += list(stream)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == cancelled.status == "cancelled"
    assert deltas(events) == events[-1].response.output_text == cancelled.output_text


def test_it_aborts_what_a_client_waits_for_no_longer(
    client: openai.OpenAI, server: TaskServer
) -> None:
    ask: Any = {"model": MODEL, "input": "a", "max_output_tokens": LONG, "stream": True}
    stream: Any = client.responses.create(**ask)
    first = next(stream)
    stream.close()
    last = ended(client, first.response.id)
    assert (last.status, last.abort["cause"]) == ("cancelled", "client_disconnected")


# -- in the background


def test_it_runs_in_the_background(client: openai.OpenAI, server: TaskServer) -> None:
    started = background(client, max_output_tokens=12, metadata={"job": "7"})
    assert (started.status, started.background) == ("queued", True)
    assert started.output == []
    last = ended(client, started.id)
    assert last.status == "incomplete"
    assert len(last.output_text) == last.usage.output_tokens == 12
    assert last.metadata == {"job": "7"}
    found = record(server, started.id)
    assert (found["kind"], found["output_token_count"]) == ("response", 12)
    assert found["prompt_token_count"] == last.usage.input_tokens
    assert last.output_text == (
        client.responses.create(model=MODEL, input="hello", max_output_tokens=12).output_text
    )


def test_it_survives_a_closed_socket(client: openai.OpenAI) -> None:
    stream = background(client, stream=True, max_output_tokens=300)
    first = next(stream)
    stream.close()
    last = ended(client, first.response.id)
    assert last.status == "incomplete"
    assert len(last.output_text) == 300


def test_it_ends_subscribers_on_cancel_and_cancels_twice(
    client: openai.OpenAI, server: TaskServer
) -> None:
    """Case 28."""
    started = background(client)
    running(server, started.id)
    seen: list[Any] = []
    ends: list[float] = []

    def subscribe() -> None:
        seen.append(list(client.responses.retrieve(started.id, stream=True)))
        ends.append(time.monotonic())

    subscribers = [threading.Thread(target=subscribe) for _ in range(3)]
    for one in subscribers:
        one.start()
    wait_until(lambda: len(followers(server)) == 3, what="nobody subscribes")
    began = time.monotonic()
    cancels = [client.responses.cancel(started.id) for _ in range(2)]
    for one in subscribers:
        one.join(10)
    assert max(ends) - began < 5.0  # well under a second on a machine that is not busy
    assert [one.status for one in cancels] == ["cancelled", "cancelled"]
    assert cancels[0].output_text == cancels[1].output_text != ""
    assert cancels[0].usage.output_tokens == len(cancels[0].output_text)
    assert len(seen) == 3
    for events in seen:
        assert events[-1].response.status == "cancelled"
        assert deltas(events) == cancels[0].output_text


def followers(server: TaskServer) -> list[object]:
    live = list(server.engine.running.registry.live.values())
    return [follower for request in live for follower in list(request.followers)]


def test_it_cancels_what_no_engine_has_yet(client: openai.OpenAI, server: TaskServer) -> None:
    server.stop_worker("work")
    try:
        started = background(client)
        cancelled = client.responses.cancel(started.id)
        assert (cancelled.status, cancelled.output) == ("cancelled", [])
    finally:
        server.start_worker("work")
    events: list[Any] = list(client.responses.retrieve(started.id, stream=True))
    assert [e.type for e in events] == [
        "response.created",
        "response.queued",
        "response.incomplete",
    ]
    later = background(client, max_output_tokens=3)
    assert ended(client, later.id).status == "incomplete"
    assert record(server, started.id)["output_token_count"] == 0


def test_it_keeps_the_end_of_what_had_ended(client: openai.OpenAI) -> None:
    started = background(client, max_output_tokens=3)
    last = ended(client, started.id)
    assert client.responses.cancel(started.id).status == last.status == "incomplete"


def test_it_replays_and_follows_from_any_event_on(
    client: openai.OpenAI, server: TaskServer
) -> None:
    started = background(client, max_output_tokens=200)
    whole: list[Any] = list(client.responses.retrieve(started.id, stream=True))
    text = ended(client, started.id).output_text
    assert deltas(whole) == text
    for seen in (0, 3, len(whole) // 2, len(whole) - 2):
        after = whole[seen].sequence_number
        rest: list[Any] = list(
            client.responses.retrieve(started.id, stream=True, starting_after=after)
        )
        assert rest[0].sequence_number > after
        assert deltas(whole[: seen + 1]) + deltas(rest) == text
        assert rest[-1].sequence_number == whole[-1].sequence_number


def test_it_goes_on_while_it_runs_where_a_client_left_off(
    client: openai.OpenAI, server: TaskServer
) -> None:
    stream = background(client, stream=True, max_output_tokens=400)
    begun = [next(stream) for _ in range(8)]
    stream.close()
    rest: list[Any] = list(
        client.responses.retrieve(
            begun[0].response.id, stream=True, starting_after=begun[-1].sequence_number
        )
    )
    text = ended(client, begun[0].response.id).output_text
    assert deltas(begun) + deltas(rest) == text
    assert len(text) == 400


def test_it_follows_from_any_web_process(client: openai.OpenAI, server: TaskServer) -> None:
    port = free_port()
    server.start_worker("another web", "web", "--port", str(port))
    another = openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key=server.key(), max_retries=0
    )
    wait_until(lambda: _serves(another), seconds=60, what="no other web")
    started = background(client)
    running(server, started.id)
    stream: Any = another.responses.retrieve(started.id, stream=True)
    events = [next(stream) for _ in range(8)]
    assert client.responses.cancel(started.id).status == "cancelled"
    events += list(stream)
    assert deltas(events) == events[-1].response.output_text
    assert events[-1].response.status == "cancelled"
    assert another.responses.retrieve(started.id).output_text == deltas(events)
    server.stop_worker("another web")


def _serves(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.APIConnectionError:
        return False


def test_it_forgets_what_is_deleted(client: openai.OpenAI, server: TaskServer) -> None:
    started = background(client)
    running(server, started.id)
    client.responses.delete(started.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(started.id)
    found = record(server, started.id)
    assert (found["state"], found["prompt"], found["choices"][0]["text"]) == ("aborted", [], "")
    assert found["output_token_count"] > 0
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(started.id)


def test_it_shows_nothing_to_strangers(client: openai.OpenAI, server: TaskServer) -> None:
    started = background(client, max_output_tokens=3)
    ended(client, started.id)
    for path in (started.id, "resp_" + "0" * 32):
        with server.http("operator") as http:
            status = http.get(f"/v1/responses/{path}").status_code
        assert status == (200 if path == started.id else 404)
    with httpx.Client(base_url=server.url) as nobody:
        assert nobody.get(f"/v1/responses/{started.id}").status_code == 401
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=1
    )
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(chat.id)


def test_it_frames_events_as_the_api_does(client: openai.OpenAI, server: TaskServer) -> None:
    body = {"model": MODEL, "input": "a", "max_output_tokens": 2, "stream": True}
    with server.http() as http:
        text = http.post("/v1/responses", json=body).text
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    for event, data in frames:
        assert json.loads(data.removeprefix("data: "))["type"] == event.removeprefix("event: ")
