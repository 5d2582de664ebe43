"""The operators' REST calls over the real database: who reaches what, and what they answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from django.test import AsyncClient, Client

from gateway import stops
from gateway.database import in_database
from inference.generation import AbortCause
from inference.lifecycle import Trigger
from inference.wire import AbortInfo
from ledger.models import Abort, InferenceRequest, Replica
from ledger.services import request_advance
from tests.cast import Member
from tests.unit.adminapi.record import confirm_abort, finish, open_request, run, signed_in

pytestmark = pytest.mark.django_db(transaction=True)

ABORT = "/v1/abort_requests"


@pytest.fixture(autouse=True)
def sent(broker: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is handed to the relay, in place of a process with links."""
    found: list[Any] = []
    monkeypatch.setattr(stops, "relay_abort_soon", lambda keys, info: found.append((keys, info)))
    return found


def post(member: Member | None, url: str, body: Any, **headers: str) -> Any:
    keys = {**(member.headers if member else {}), **headers}
    return Client().post(url, body, content_type="application/json", headers=keys)


def get(member: Member, url: str) -> Any:
    return Client().get(url, headers=member.headers)


def state(row: InferenceRequest) -> str:
    row.refresh_from_db()
    return row.state


# -- abort


def test_it_answers_202_at_once_with_location_and_receipt(owner: Member, sent: list[Any]) -> None:
    row = open_request(owner.caller)
    run(row)
    response = post(owner, ABORT, {"req_ids": [row.pk], "reason": "enough"})
    receipt = response.json()
    assert response.status_code == 202
    assert response.headers["Location"] == f"/v1/aborts/{receipt['id']}"
    assert receipt["object"] == "abort"
    assert receipt["counts"]["pending"] == 1
    assert receipt["requested_by"] == "key:owner"
    assert state(row) == "aborting"
    assert sent[0][1] == AbortInfo(id=receipt["id"], cause=AbortCause.API, reason="enough")


@pytest.mark.parametrize("name", ["internal", "response", "client"])
def test_it_aborts_by_every_id_with_the_same_effect(owner: Member, name: str) -> None:
    """Case 4."""
    row = open_request(owner.caller, client_id="job-1")
    ids = {
        "internal": row.pk,
        "response": f"cmpl-{row.pk.removeprefix('req_')}",
        "client": "job-1",
    }
    receipt = post(owner, ABORT, {"req_ids": [ids[name], "job-10"]}).json()
    assert [target["request_id"] for target in receipt["targets"]] == [row.pk, None]
    assert receipt["targets"][1]["outcome"] == "not_found"
    assert receipt["result"]["not_found"] == ["job-10"]
    assert state(row) == "aborting"


def test_it_tells_the_exact_count_once_the_engine_has_released(
    owner: Member, sent: list[Any]
) -> None:
    row = open_request(owner.caller)
    run(row)
    location = post(owner, ABORT, {"req_ids": [row.pk]}).headers["Location"]
    confirm_abort(row, sent[0][1], tokens=41)
    receipt = get(owner, location).json()
    assert receipt["status"] == "done"
    assert receipt["result"]["aborted"] == [{"request_id": row.pk, "output_token_count": 41}]
    assert receipt["targets"][0]["choices"] == [{"index": 0, "output_token_count": 41}]


BAD: list[Any] = [
    {},
    {"req_ids": []},
    {"req_ids": [""]},
    {"req_ids": [1]},
    {"req_ids": "abcdef"},
    {"abort_all": "false"},
    {"stop_all": True},
    {"filter": {}},
    {"req_ids": ["a"] * 1001},
    "not JSON",
    "[1, 2",
    '{"abort_all": true, "req_ids": ["a"]}',
]


@pytest.mark.parametrize("body", BAD)
def test_it_refuses_a_malformed_abort_and_stops_nothing(owner: Member, body: Any) -> None:
    """Case 3."""
    rows = [open_request(owner.caller), open_request(owner.caller)]
    response = post(owner, ABORT, body)
    assert response.status_code == 400, response.content
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert {state(row) for row in rows} == {"queued"}
    assert Abort.objects.count() == 0


def test_it_refuses_a_form(owner: Member) -> None:
    """Case 3."""
    response = Client().post(ABORT, {"abort_all": "true"}, headers=owner.headers)
    urlencoded = Client().post(
        ABORT,
        "abort_all=true",
        content_type="application/x-www-form-urlencoded",
        headers=owner.headers,
    )
    assert (response.status_code, urlencoded.status_code) == (400, 400)


def test_it_names_the_field_that_is_wrong(owner: Member) -> None:
    error = post(owner, ABORT, {"filter": {"older_than": "30"}}).json()["error"]
    assert (error["param"], error["type"]) == ("filter.older_than", "invalid_request_error")


def test_it_lets_nobody_in_without_a_key(owner: Member) -> None:
    """Case 7."""
    row = open_request(owner.caller)
    assert post(None, ABORT, {"abort_all": True}).status_code == 401
    assert state(row) == "queued"


def test_it_tells_a_stranger_nothing(owner: Member, stranger: Member) -> None:
    """Case 7."""
    row = open_request(owner.caller, client_id="job-1")
    receipt = post(stranger, ABORT, {"req_ids": [row.pk, "job-1"]}).json()
    assert receipt["counts"]["not_found"] == 2
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events")):
        call = partial(Client().generic, method)
        for any_id in (row.pk, f"req_{'0' * 32}", "job-1", "nobodys"):
            url = f"/v1/requests/{any_id}{path}"
            answer = call(url, headers=stranger.headers, content_type="application/json")
            assert answer.status_code == 404
            assert any_id in answer.json()["error"]["message"]
    assert state(row) == "queued"
    done = post(owner, ABORT, {"req_ids": [row.pk]}).headers["Location"]
    assert get(stranger, done).status_code == 404


def test_it_stops_all_of_ones_own_with_infer_and_everyones_with_operate(
    owner: Member, teammate: Member, stranger: Member, operator: Member
) -> None:
    """Case 7."""
    mine, ours, theirs = (open_request(one.caller) for one in (owner, teammate, stranger))
    post(owner, ABORT, {"abort_all": True})
    assert (state(mine), state(ours), state(theirs)) == ("aborting", "aborting", "queued")
    post(operator, ABORT, {"abort_all": True})
    assert state(theirs) == "aborting"


def test_it_stops_what_a_filter_finds(owner: Member) -> None:
    wanted = open_request(owner.caller, metadata={"job": "7"}, model="small")
    other = open_request(owner.caller, metadata={"job": "8"}, model="small")
    body = {"filter": {"model": "small", "state": "queued", "metadata": {"job": "7"}}}
    assert post(owner, ABORT, body).json()["counts"]["targets"] == 1
    assert (state(wanted), state(other)) == ("aborting", "queued")


def test_it_counts_without_stopping_on_a_dry_run(owner: Member, sent: list[Any]) -> None:
    row = open_request(owner.caller)
    response = post(owner, ABORT, {"req_ids": [row.pk, "unknown"], "dry_run": True})
    assert response.status_code == 200
    counts = response.json()["counts"]
    assert (counts["targets"], counts["not_found"]) == (2, 1)
    assert state(row) == "queued"
    assert (Abort.objects.count(), sent) == (0, [])


def test_it_makes_one_abort_of_one_idempotency_key(owner: Member) -> None:
    row = open_request(owner.caller)
    first, second, other = (
        post(owner, ABORT, body, **{"Idempotency-Key": "step-7"})
        for body in ({"req_ids": [row.pk]}, {"req_ids": [row.pk]}, {"abort_all": True})
    )
    assert first.json()["id"] == second.json()["id"]
    assert other.status_code == 409
    assert Abort.objects.count() == 1


# -- waiting for the receipt


async def test_it_waits_for_the_receipt_when_asked(owner: Member) -> None:
    row = await in_database(open_request, owner.caller)
    asked = asyncio.create_task(_abort_and_wait(owner, row, seconds=20))
    await _until_aborting(row)
    assert not asked.done()
    abort = await in_database(Abort.objects.get)
    await in_database(confirm_abort, row, AbortInfo(id=abort.pk, cause=AbortCause.API), tokens=3)
    response = await asked
    assert response.status_code == 200
    assert response.json()["counts"]["aborted"] == 1


async def test_it_answers_202_when_the_wait_is_over(owner: Member) -> None:
    row = await in_database(open_request, owner.caller)
    response = await _abort_and_wait(owner, row, seconds=0.1)
    assert response.status_code == 202
    assert response.json()["counts"]["pending"] == 1


async def _until_aborting(row: InferenceRequest) -> None:
    async with asyncio.timeout(20):
        while await in_database(state, row) != "aborting":  # noqa: ASYNC110 - it is a row
            await asyncio.sleep(0.01)


async def _abort_and_wait(owner: Member, row: InferenceRequest, *, seconds: float) -> Any:
    return await AsyncClient().post(
        ABORT,
        {"req_ids": [row.pk]},
        content_type="application/json",
        headers={**owner.headers, "Prefer": f"wait={seconds}"},
    )


def test_it_refuses_to_wait_longer_than_it_may(owner: Member) -> None:
    row = open_request(owner.caller)
    assert post(owner, ABORT, {"req_ids": [row.pk]}, Prefer="wait=61").status_code == 400
    assert state(row) == "queued"


# -- one request


@pytest.mark.parametrize("way", ["cancel", "delete"])
def test_it_stops_one_request_and_repeats_safely(owner: Member, way: str) -> None:
    row = open_request(owner.caller, client_id="job-1")

    def stop() -> Any:
        if way == "delete":
            return Client().delete("/v1/requests/job-1", headers=owner.headers)
        return post(owner, "/v1/requests/job-1/cancel", {"reason": "late"})

    assert [stop().status_code, stop().status_code] == [202, 202]
    assert state(row) == "aborting"


def test_it_answers_for_a_finished_request_with_its_outcome(owner: Member) -> None:
    """Case 13."""
    row = open_request(owner.caller)
    finish(row)
    receipt = post(owner, f"/v1/requests/{row.pk}/cancel", {}).json()
    assert receipt["targets"][0]["outcome"] == "already_finished"
    assert (receipt["status"], state(row)) == ("done", "finished")


def test_it_shows_the_record_with_output_to_a_teammate(owner: Member, teammate: Member) -> None:
    row = open_request(owner.caller, client_id="job-1", metadata={"job": "7"})
    finish(row, text="Hello.", token_ids=(5, 6))
    for any_id in (row.pk, "job-1", f"cmpl-{row.pk.removeprefix('req_')}"):
        record = get(teammate, f"/v1/requests/{any_id}").json()
        assert (record["id"], record["state"]) == (row.pk, "finished")
        assert record["choices"][0]["text"] == "Hello."
        assert record["choices"][0]["token_ids"] == [5, 6]
        assert record["output_token_count"] == 2


def test_it_numbers_the_events(owner: Member) -> None:
    row = open_request(owner.caller)
    finish(row)
    events = get(owner, f"/v1/requests/{row.pk}/events").json()
    numbers = [event["seq"] for event in events["data"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert events["data"][0]["to_state"] == "received"
    rest = get(owner, f"/v1/requests/{row.pk}/events?after=2&limit=1").json()
    assert ([event["seq"] for event in rest["data"]], rest["has_more"]) == ([3], True)


# -- lists


def test_it_pages_through_requests_newest_first(owner: Member, stranger: Member) -> None:
    rows = [open_request(owner.caller).pk for _ in range(5)]
    open_request(stranger.caller)
    seen: list[str] = []
    url: str | None = "/v1/requests?limit=2"
    while url:
        found = get(owner, url).json()
        seen += [record["id"] for record in found["data"]]
        if len(seen) == 2:
            open_request(owner.caller)  # what comes meanwhile disturbs no later page
        url = f"/v1/requests?limit=2&cursor={found['next']}" if found["has_more"] else None
    assert seen == rows[::-1]


def test_it_filters_requests(owner: Member) -> None:
    row = open_request(owner.caller, model="small", metadata={"job": "7"})
    ended = open_request(owner.caller, model="big")
    finish(ended)

    def ids(query: str) -> list[str]:
        return [record["id"] for record in get(owner, f"/v1/requests?{query}").json()["data"]]

    assert ids("state=queued") == [row.pk]
    assert ids("model=big") == [ended.pk]
    assert ids("metadata[job]=7") == [row.pk]
    assert ids("owner=tenant") == [ended.pk, row.pk]
    assert ids("owner=nobody") == []
    assert ids("until=2001-01-01T00:00:00Z") == []
    assert ids("since=2001-01-01T00:00:00Z") == [ended.pk, row.pk]


@pytest.mark.parametrize(
    "query",
    [
        "state=asleep",
        "limit=0",
        "limit=x",
        "cursor=abc",
        "cursor=%00",
        "sort=up",
        "state=held&state=queued",
        "since=soon",
        "cause=fun",
    ],
)
def test_it_refuses_a_query_that_it_does_not_know(owner: Member, query: str) -> None:
    assert get(owner, f"/v1/requests?{query}").status_code == 400


def test_it_lists_aborts_and_pages_through_targets(owner: Member, stranger: Member) -> None:
    ids = [f"unknown-{number}" for number in range(25)]
    receipt = post(owner, ABORT, {"req_ids": ids}).json()
    assert receipt["counts"]["targets"] == 25
    assert "targets_next" not in receipt
    [listed] = get(owner, "/v1/aborts").json()["data"]
    assert (listed["id"], len(listed["targets"])) == (receipt["id"], 20)
    url = f"/v1/aborts/{receipt['id']}?targets_after={listed['targets_next']}"
    rest = get(owner, url).json()
    assert [target["requested_id"] for target in rest["targets"]] == ids[20:]
    assert rest["counts"] == receipt["counts"]
    assert get(stranger, "/v1/aborts").json()["data"] == []


def test_it_shows_replicas_to_operators_only(owner: Member, operator: Member) -> None:
    from django.utils import timezone

    Replica.objects.create(
        id="engine-0", epoch="e", model="tiny", bus_url="unix:x", last_beat_at=timezone.now()
    )
    assert get(owner, "/v1/replicas").status_code == 403
    assert [one["id"] for one in get(operator, "/v1/replicas").json()["data"]] == ["engine-0"]


# -- staff


def test_it_lets_staff_do_what_their_permissions_say(owner: Member) -> None:
    from tests.unit.adminapi.record import staff_with

    row = open_request(owner.caller)
    viewer = signed_in(staff_with("viewer", "ledger.view_inferencerequest"))
    stopper = signed_in(
        staff_with("stopper", "ledger.view_inferencerequest", "ledger.abort_inferencerequest")
    )
    body = {"req_ids": [row.pk]}
    assert viewer.get(f"/v1/requests/{row.pk}").status_code == 200
    assert viewer.post(ABORT, body, content_type="application/json").status_code == 403
    assert state(row) == "queued"
    assert stopper.post(ABORT, body, content_type="application/json").status_code == 202
    assert state(row) == "aborting"


def test_it_refuses_staff_without_the_csrf_token(owner: Member, staff: Any) -> None:
    row = open_request(owner.caller)
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)
    response = client.post(ABORT, {"req_ids": [row.pk]}, content_type="application/json")
    assert response.status_code == 403
    assert "CSRF token" in response.json()["error"]["message"]
    assert "scope" not in response.json()["error"]["message"]
    assert state(row) == "queued"


def test_it_gives_a_cause_to_what_failed_and_finds_it_by_that(owner: Member) -> None:
    lost, aborted = (open_request(owner.caller) for _ in range(2))
    post(owner, ABORT, {"req_ids": [aborted.pk]})
    late = open_request(owner.caller, held=True)
    request_advance(
        request_id=late.pk, generation=late.generation, trigger=Trigger.EXPIRE, actor="test"
    )
    fields = {"error_code": "engine_lost", "error_message": "gone"}
    request_advance(
        request_id=lost.pk,
        generation=lost.generation,
        trigger=Trigger.FAIL,
        actor="test",
        fields=fields,
    )
    wanted = {"engine_lost": lost, "api": aborted, "queue_deadline": late}
    for cause, row in wanted.items():
        found = get(owner, f"/v1/requests?cause={cause}").json()["data"]
        assert [(one["id"], one["cause"]) for one in found] == [(row.pk, cause)]
    assert get(owner, f"/v1/requests/{lost.pk}").json()["cause"] == "engine_lost"
    assert get(owner, "/v1/requests?cause=nothing_known").status_code == 400


def test_it_leaves_no_failure_without_a_cause(owner: Member) -> None:
    row = open_request(owner.caller)
    request_advance(
        request_id=row.pk, generation=row.generation, trigger=Trigger.FAIL, actor="test"
    )
    assert get(owner, f"/v1/requests/{row.pk}").json()["cause"] == "engine_error"


@pytest.mark.parametrize("charset", ["nonsense", "utf-16"])
def test_it_refuses_a_body_in_another_charset(owner: Member, charset: str) -> None:
    answer = Client().generic(
        "POST",
        ABORT,
        b'{"req_ids": ["a"]}',
        content_type=f"application/json; charset={charset}",
        headers=owner.headers,
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert charset in answer.json()["error"]["message"]


def test_it_has_one_format_whatever_the_query_says(owner: Member) -> None:
    row = open_request(owner.caller)
    assert get(owner, f"/v1/requests/{row.pk}?format=xml").status_code == 200
    unknown = get(owner, "/v1/requests?format=xml")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "format")


def test_it_documents_every_call(operator: Member) -> None:
    paths = get(operator, "/schema/openapi.json?format=json").json()["paths"]
    wanted = {
        "/v1/abort_requests": {"post"},
        "/v1/aborts": {"get"},
        "/v1/aborts/{abort_id}": {"get"},
        "/v1/requests": {"get"},
        "/v1/requests/{request_id}": {"get", "delete"},
        "/v1/requests/{request_id}/cancel": {"post"},
        "/v1/requests/{request_id}/events": {"get"},
        "/v1/replicas": {"get"},
    }
    for path, methods in wanted.items():
        assert set(paths[path]) == methods
        for method in methods:
            answers = paths[path][method]["responses"]
            assert all("application/json" in answer["content"] for answer in answers.values())
    body = paths["/v1/abort_requests"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json"}
