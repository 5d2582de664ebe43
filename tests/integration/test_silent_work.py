"""Work that no engine ever heard of: asked about on the real bus, or submitted late after all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from inference.bus import client as bus
from inference.generation import SamplingParams
from inference.wire import Accepted, RequestKey, Submit, TextPrompt
from ledger import tasks
from ledger.models import InferenceRequest, Replica
from ledger.services import abort_open, events_record
from ledger.specs import Placement
from tests.cast import Member
from tests.integration.gateway_server import MODEL, EngineThread
from tests.processes import wait_until
from tests.unit.ledger.desk import submitted


@pytest.fixture
def engine(env: Any, db: None) -> Iterator[EngineThread]:
    env.home.prepare()
    engine = EngineThread(env.home.root, step_delay=0.01)
    engine.start()
    url = engine.running.config.bus_url
    status = bus.ask(url, secret=settings.HALTLINE_BUS_SECRET)
    Replica.objects.create(
        id=status.replica,
        epoch=status.epoch,
        model=MODEL,
        bus_url=url,
        last_beat_at=timezone.now(),
    )
    yield engine
    engine.stop()


def placed(owner: Member) -> InferenceRequest:
    replica = Replica.objects.get()
    place = Placement(replica=replica.pk, epoch=replica.epoch, web="web-gone")
    return submitted(owner, placement=place)


def message(row: InferenceRequest) -> Submit:
    return Submit(
        key=RequestKey(row.pk, row.generation),
        model=MODEL,
        prompts=[TextPrompt("a")],
        params=SamplingParams(max_tokens=15_000),
        attached=False,
    )


def send(engine: EngineThread, row: InferenceRequest) -> Any:
    url = engine.running.config.bus_url
    return bus.submit(url, submission=message(row), secret=settings.HALTLINE_BUS_SECRET)


def ask_after(seconds: float) -> None:
    """What the sweep does, as if all were so much older."""
    by = timedelta(seconds=seconds)
    for row in InferenceRequest.objects.all():
        moments = ("received_at", "queued_at", "changed_at", "asked_at", "unknown_at")
        known = {name: getattr(row, name) for name in moments}
        older = {name: at - by for name, at in known.items() if at is not None}
        InferenceRequest.objects.filter(pk=row.pk).update(**older)
    tasks.requests_ask()


def told(engine: EngineThread) -> list[Any]:
    return engine.running.publisher.waiting


def test_it_ends_what_was_never_submitted_and_keeps_what_waits(
    owner: Member, engine: EngineThread
) -> None:
    orphan, waiting = placed(owner), placed(owner)
    assert isinstance(send(engine, waiting), Accepted)
    ask_after(31)
    ask_after(31)
    for row in (orphan, waiting):
        row.refresh_from_db()
    assert (orphan.state, orphan.error_code, orphan.output_token_count) == (
        "failed",
        "unavailable",
        0,
    )
    assert waiting.state == "queued"
    assert [key.request_id for key in engine.running.registry.live] == [waiting.pk]


@pytest.mark.parametrize("is_ended", [True, False])
def test_it_is_not_contradicted_by_a_submission_that_comes_late(
    owner: Member, engine: EngineThread, is_ended: bool
) -> None:
    """Nobody may send it any more; should it have been under way, it arrives as aborted."""
    row = placed(owner)
    ask_after(31)
    if is_ended:
        ask_after(31)
    assert isinstance(send(engine, row), Accepted)
    wait_until(lambda: told(engine) and engine.is_idle)
    (event,) = told(engine)
    assert event.output_tokens == 0
    recorded = events_record(events=[event])
    row.refresh_from_db()
    if is_ended:
        assert (recorded.late, row.state) == (1, "failed")
    else:
        assert (recorded.applied, row.state) == (1, "aborted")
    assert (row.output_token_count, row.first_scheduled_at) == (0, None)


def test_it_confirms_an_abort_of_what_was_never_submitted(
    owner: Member, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "abort_carry_out_soon", lambda *_, **__: None)
    row = placed(owner)
    abort = abort_open(caller=owner.caller, ids=[row.pk])
    tasks.abort_carry_out(abort.pk)
    row.refresh_from_db()
    assert row.state == "aborting"
    ask_after(31)
    ask_after(31)
    row.refresh_from_db()
    assert (row.state, row.cause, row.abort_id) == ("aborted", "api", abort.pk)
    assert abort.targets.get().outcome == "aborted"


def test_it_goes_on_where_an_engine_cannot_be_asked(owner: Member, engine: EngineThread) -> None:
    row = placed(owner)
    now = timezone.now()
    Replica.objects.create(
        id="a-silent-one", epoch="e", model=MODEL, bus_url="unix:/nowhere", last_beat_at=now
    )
    place = Placement(replica="a-silent-one", epoch="e", web="w")
    other = submitted(owner, placement=place)
    ask_after(31)
    ask_after(31)
    for one in (row, other):
        one.refresh_from_db()
    assert (row.state, other.state) == ("failed", "queued")
