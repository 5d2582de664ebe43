"""Websockets against the real database; the channel layer is the in-memory one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.db import connections

from accounts.models import ApiKey
from inference.events import RequestEvent
from ledger.consumers import SubjectConsumer
from ledger.routing import websocket_urlpatterns
from ledger.services import abort_open, events_record
from tests.cast import Member
from tests.unit.ledger.desk import submitted
from tests.unit.ledger.engine import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def in_memory(settings: Any) -> AsyncIterator[None]:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    yield
    await sync_to_async(connections.close_all)()


async def database(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return await sync_to_async(work)(*args, **named)


async def tell(event: RequestEvent) -> None:
    await database(events_record, events=[event])


def socket(path: str, secret: str | None, **options: Any) -> WebsocketCommunicator:
    headers = [(b"authorization", f"Bearer {secret}".encode())] if secret else []
    app = URLRouter(websocket_urlpatterns)
    return WebsocketCommunicator(app, path, headers=headers, **options)


async def opened(path: str, secret: str | None) -> WebsocketCommunicator:
    communicator = socket(path, secret)
    accepted, _ = await communicator.connect()
    assert accepted
    return communicator


async def closed(communicator: WebsocketCommunicator) -> int:
    message = await communicator.receive_output(timeout=5)
    assert message["type"] == "websocket.close", message
    return int(message["code"])


async def heard(communicator: WebsocketCommunicator) -> dict[str, Any]:
    found: dict[str, Any] = await communicator.receive_json_from(timeout=5)
    return found


async def test_it_shows_a_snapshot_then_each_change_then_closes(owner: Member) -> None:
    row = await database(submitted, owner)
    run = Run.of(row)
    watcher = await opened(f"/ws/requests/{row.pk}/", owner.secret)
    first = await heard(watcher)
    assert (first["type"], first["request"]["state"]) == ("snapshot", "queued")
    await tell(run.schedule())
    second = await heard(watcher)
    assert [one["type"] for one in second["changes"]] == ["request.changed"]
    assert second["changes"][0]["events"][0]["to_state"] == "running"
    assert int(second["cursor"]) > int(first["cursor"])
    await tell(run.finish(tokens=2))
    last = (await heard(watcher))["changes"][-1]["request"]
    assert (last["state"], last["choices"][0]["text"]) == ("finished", "xx")
    assert await closed(watcher) == 1000


async def test_it_pushes_a_receipt(owner: Member) -> None:
    row = await database(submitted, owner)
    abort = await database(abort_open, caller=owner.caller, ids=[row.pk])
    watcher = await opened(f"/ws/aborts/{abort.pk}/", owner.secret)
    assert (await heard(watcher))["abort"]["counts"]["pending"] == 1
    await tell(Run.of(row).abort(abort_id=abort.pk))
    change = (await heard(watcher))["changes"][-1]
    assert (change["type"], change["abort"]["status"]) == ("abort.changed", "done")
    assert change["abort"]["targets"][0]["outcome"] == "aborted"
    assert await closed(watcher) == 1000


async def test_it_resumes_without_gap_or_duplicate(owner: Member) -> None:
    row = await database(submitted, owner)
    run = Run.of(row)
    watcher = await opened(f"/ws/requests/{row.pk}/", owner.secret)
    cursor = (await heard(watcher))["cursor"]
    await watcher.disconnect()
    await tell(run.schedule())
    await tell(run.preempt())
    watcher = await opened(f"/ws/requests/{row.pk}/?after={cursor}", owner.secret)
    changes = (await heard(watcher))["changes"]
    assert [one["to_state"] for change in changes for one in change["events"]] == [
        "running",
        "preempted",
    ]
    assert len({change["cursor"] for change in changes}) == 2
    await watcher.disconnect()


async def test_it_says_resync_where_the_cursor_is_not_ours(owner: Member) -> None:
    row = await database(submitted, owner)
    for cursor in ("999999", "x", "-1"):
        watcher = await opened(f"/ws/requests/{row.pk}/?after={cursor}", owner.secret)
        assert (await heard(watcher))["type"] == "resync"
        assert (await heard(watcher))["type"] == "snapshot"
        await watcher.disconnect()


async def test_it_closes_after_the_snapshot_of_what_has_ended(owner: Member) -> None:
    row = await database(submitted, owner)
    await tell(Run.of(row).finish())
    watcher = await opened(f"/ws/requests/{row.pk}/", owner.secret)
    cursor = (await heard(watcher))["cursor"]
    assert await closed(watcher) == 1000
    watcher = await opened(f"/ws/requests/{row.pk}/?after={cursor}", owner.secret)
    assert await closed(watcher) == 1000


async def test_it_finds_what_a_lost_push_did_not_tell(
    owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubjectConsumer, "reread_seconds", 0.1)
    row = await database(submitted, owner)
    watcher = await opened(f"/ws/requests/{row.pk}/", owner.secret)
    await heard(watcher)
    monkeypatch.setattr("ledger.push.push", lambda messages: None)
    await tell(Run.of(row).finish())
    assert (await heard(watcher))["changes"][-1]["request"]["state"] == "finished"
    assert await closed(watcher) == 1000


async def test_it_refuses_who_may_not_see(owner: Member, stranger: Member) -> None:
    row = await database(submitted, owner)
    for path, secret, code in (
        (f"/ws/requests/{row.pk}/", None, 4401),
        (f"/ws/requests/{row.pk}/", "wrong.key", 4401),
        (f"/ws/requests/{row.pk}/", stranger.secret, 4404),
        ("/ws/requests/nothing/", owner.secret, 4404),
        ("/ws/aborts/nothing/", owner.secret, 4404),
    ):
        assert await closed(await opened(path, secret)) == code


async def test_it_takes_the_key_as_subprotocol_and_selects_only_its_own(owner: Member) -> None:
    row = await database(submitted, owner)
    offered = ["haltline.v1", f"haltline.key.{owner.secret}"]
    watcher = socket(f"/ws/requests/{row.pk}/", None, subprotocols=offered)
    assert await watcher.connect() == (True, "haltline.v1")
    assert (await heard(watcher))["type"] == "snapshot"
    await watcher.disconnect()


async def test_it_closes_the_socket_of_a_revoked_key(
    owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.consumers.RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(SubjectConsumer, "reread_seconds", 0.1)
    row = await database(submitted, owner)
    watcher = await opened(f"/ws/requests/{row.pk}/", owner.secret)
    await heard(watcher)
    await database(ApiKey.objects.filter(name="owner").update, revoked=True)
    assert await closed(watcher) == 4401
