"""The console: who may see and stop what, and that nothing a client sends becomes markup."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from gateway import stops
from inference.generation import AbortCause
from inference.wire import AbortInfo, RequestKey
from ledger.models import Abort, AbortTarget, InferenceRequest
from tests.unit.adminapi.record import Open, confirm_abort, finish, run

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>{{7*7}}"
LIST = "/admin/ledger/inferencerequest/"
ABORT = "/admin/ledger/inferencerequest/abort/"

Sent = list[tuple[dict[str, list[RequestKey]], AbortInfo]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What is handed to the relay, in place of a process with links."""
    found: Sent = []
    monkeypatch.setattr(stops, "relay_abort_soon", lambda keys, info: found.append((keys, info)))
    return found


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, response.status_code
    return str(response.content.decode())


def test_it_lists_requests_with_state_owner_model_and_tokens(console: Client, opened: Open) -> None:
    row = opened(client_id="job-1")
    run(row)
    text = page(console, LIST)
    assert "job-1" in text
    assert "running" in text
    assert "tenant" in text
    assert "tiny" in text
    assert "5 + 0" in text


@pytest.mark.parametrize("name", ["id", "response", "client", "model", "owner"])
def test_it_finds_a_request_by_any_id(console: Client, opened: Open, name: str) -> None:
    row = opened(client_id="wanted", model="small-model")
    opened(client_id="other", model="big-model")
    words = {
        "id": row.pk,
        "response": f"cmpl-{row.pk.removeprefix('req_')}",
        "client": "wanted",
        "model": "small",
        "owner": "tenant",
    }
    text = page(console, f"{LIST}?q={words[name]}")
    assert "wanted" in text
    assert ("other" in text) == (name == "owner")


def test_it_filters_what_is_live(console: Client, opened: Open) -> None:
    finish(opened(client_id="ended-one"))
    opened(client_id="live-one")
    live, ended = page(console, f"{LIST}?life=live"), page(console, f"{LIST}?life=ended")
    assert ("live-one" in live, "ended-one" in live) == (True, False)
    assert ("live-one" in ended, "ended-one" in ended) == (False, True)


def test_it_shows_a_request_with_its_timeline_and_output(console: Client, opened: Open) -> None:
    row = opened(prompt="Say hello.")
    finish(row, text="Hello there.", token_ids=(7, 8, 9))
    text = page(console, f"{LIST}{row.pk}/change/")
    assert 'class="hl-decode"' in text
    assert "Hello there." in text
    assert "Say hello." in text
    assert "3 tokens" in text
    assert "abort-this" not in text
    for state in ("received", "queued", "running", "finished"):
        assert state in text


def test_it_escapes_whatever_a_client_sent(console: Client, opened: Open) -> None:
    row = opened(
        prompt=HOSTILE, model=HOSTILE, metadata={HOSTILE: HOSTILE}, params={"stop": HOSTILE}
    )
    finish(row, text=HOSTILE)
    for url in (f"{LIST}{row.pk}/change/", LIST, f"{ABORT}?ids={row.pk}"):
        text = page(console, url)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "alert(1)>49" not in text


def test_it_escapes_a_hostile_reason_in_the_receipt(
    console: Client, opened: Open, sent: Sent
) -> None:
    row = opened()
    console.post(ABORT, {"ids": row.pk, "reason": HOSTILE})
    abort = Abort.objects.get()
    for url in (
        reverse("admin:ledger_abort_change", args=[abort.pk]),
        "/admin/ledger/abort/",
        f"{LIST}{row.pk}/change/",
    ):
        text = page(console, url)
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


def test_it_asks_for_a_reason_and_says_how_many_are_live(console: Client, opened: Open) -> None:
    live, ended = opened(client_id="live-one"), opened(client_id="ended-one")
    finish(ended)
    response = console.post(
        LIST, {"action": "abort_selected", "_selected_action": [live.pk, ended.pk]}
    )
    text = response.content.decode()
    assert "Stop 1 live request?" in text
    assert "1 of the selected had ended already" in text
    assert Abort.objects.count() == 0


def test_it_stops_nothing_without_a_reason(console: Client, opened: Open, sent: Sent) -> None:
    row = opened()
    response = console.post(ABORT, {"ids": row.pk, "reason": "  "})
    assert "This field is required." in response.content.decode()
    assert Abort.objects.count() == 0
    assert sent == []


def test_it_aborts_through_the_ledger_and_tells_the_engine(
    console: Client, opened: Open, sent: Sent
) -> None:
    row = opened()
    run(row)
    response = console.post(ABORT, {"ids": row.pk, "reason": "over budget"})
    abort = Abort.objects.get()
    assert response.headers["Location"] == reverse("admin:ledger_abort_change", args=[abort.pk])
    row.refresh_from_db()
    assert (row.state, abort.cause, abort.requested_by) == ("aborting", "operator", "user:boss")
    info = AbortInfo(id=abort.pk, cause=AbortCause.OPERATOR, reason="over budget")
    assert sent == [({"engine-0": [RequestKey(row.pk, 1)]}, info)]


def test_it_shows_the_receipt_with_outcome_and_tokens(
    console: Client, opened: Open, sent: Sent
) -> None:
    row = opened(client_id="job-7")
    run(row)
    console.post(ABORT, {"ids": row.pk, "reason": "over budget"})
    confirm_abort(row, sent[0][1], tokens=41)
    target = AbortTarget.objects.get()
    assert (target.outcome, target.output_token_count) == ("aborted", 41)
    text = page(console, reverse("admin:ledger_abort_change", args=[target.abort_id]))
    for told in ("over budget", "user:boss", row.pk, "41", "aborted", "done"):
        assert told in text
    shown = page(console, f"{LIST}{row.pk}/change/")
    assert "Stopped by user:boss, cause: operator." in shown
    assert "over budget" in shown
    assert target.abort_id in shown


def test_it_settles_at_once_what_nobody_holds(console: Client, opened: Open, sent: Sent) -> None:
    row = opened(held=True)
    console.post(ABORT, {"ids": row.pk, "reason": "not needed"})
    row.refresh_from_db()
    assert row.state == "aborted"
    assert sent == []


def test_it_offers_view_only_staff_no_abort(viewer: Client, opened: Open, sent: Sent) -> None:
    row = opened()
    run(row)
    assert "abort_selected" not in page(viewer, LIST)
    assert "abort-this" not in page(viewer, f"{LIST}{row.pk}/change/")
    viewer.post(LIST, {"action": "abort_selected", "_selected_action": [row.pk]})
    assert viewer.get(f"{ABORT}?ids={row.pk}").status_code == 403
    assert viewer.post(ABORT, {"ids": row.pk, "reason": "mine"}).status_code == 403
    assert InferenceRequest.objects.get().state == "running"
    assert sent == []


def test_it_refuses_an_abort_without_the_csrf_token(staff: object, opened: Open) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)  # type: ignore[arg-type]  # the cast's fixture is a user
    row = opened()
    assert client.post(ABORT, {"ids": row.pk, "reason": "forged"}).status_code == 403
    assert Abort.objects.count() == 0


def test_it_lets_nobody_add_change_or_delete_a_record(console: Client, opened: Open) -> None:
    row = opened()
    for model in ("inferencerequest", "abort", "replica"):
        assert console.get(f"/admin/ledger/{model}/add/").status_code == 403
    change, delete = (f"{LIST}{row.pk}/{act}/" for act in ("change", "delete"))
    assert console.post(change, {"state": "finished"}).status_code == 403
    assert console.post(delete, {"post": "yes"}).status_code == 403
    assert InferenceRequest.objects.get().state == "queued"


def test_it_answers_unknown_pages_without_a_failure(console: Client) -> None:
    assert console.get(f"{LIST}req_unknown/change/").status_code == 302
    assert "Nothing to stop" in page(console, f"{ABORT}?ids=req_unknown")
