"""Background work on its way to a real worker: tasks called by hand, lost, late and doubled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from gateway import tasks
from gateway.api.responses_record import response_json
from gateway.dispatch import dispatch_soon, request_dispatch, requests_overdue, submission_of
from gateway.orders import response_order
from inference.bus import client as bus
from inference.events import ReplicaBeat
from inference.lifecycle import Trigger
from inference.wire import RequestKey
from ledger import services
from ledger.models import AbortTarget, InferenceRequest, Replica
from ledger.specs import SUBMIT_WITHIN
from tests.cast import Member
from tests.integration.gateway_server import LONGEST, MODEL, EngineThread
from tests.processes import wait_until
from tests.unit.ledger.engine import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing carries an abort out here; a broker that is away would only cost seconds."""
    monkeypatch.setattr("ledger.enqueue.abort_carry_out_soon", lambda abort_id: None)


@pytest.fixture
def engine(env: Any) -> Iterator[EngineThread]:
    env.home.prepare()
    found = EngineThread(env.home.root, step_delay=0.002)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def replica(engine: EngineThread, db: None) -> Replica:
    url = engine.running.config.bus_url
    beat(engine)
    return Replica.objects.get(bus_url=url)


def beat(engine: EngineThread) -> None:
    config = engine.running.config
    status = bus.ask(config.bus_url, secret=config.bus_secret)
    at = timezone.now().timestamp()
    services.replica_beat_record(beat=ReplicaBeat(status=status, bus_url=config.bus_url, at=at))


def received(member: Member, **fields: Any) -> InferenceRequest:
    asked = {"model": MODEL, "input": "hello", "background": True, "max_output_tokens": 5, **fields}
    spec = response_order(asked, client_id="").new_request()
    return services.request_receive(caller=member.caller, spec=spec)


def told(engine: EngineThread, row: InferenceRequest) -> InferenceRequest:
    """The row, once all that the engine has to say of it is recorded."""
    key = RequestKey(row.pk, row.generation)
    wait_until(lambda: key not in engine.running.registry.live, what="the engine still has it")
    services.events_record(events=engine.running.publisher.waiting)
    row.refresh_from_db()
    return row


def placed(row: InferenceRequest, replica: Replica, **fields: Any) -> InferenceRequest:
    """As if the task had ended between the placement and the submission."""
    assert services.request_advance(
        request_id=row.pk,
        generation=1,
        trigger=Trigger.ENQUEUE,
        actor="tasks",
        fields={"replica": replica.pk, "epoch": replica.epoch, **fields},
    )
    row.refresh_from_db()
    return row


def aged(row: InferenceRequest, seconds: float) -> None:
    before = timezone.now() - timedelta(seconds=seconds)
    InferenceRequest.objects.filter(pk=row.pk).update(changed_at=before)
    InferenceRequest.objects.filter(pk=row.pk, queued_at__isnull=False).update(queued_at=before)


def test_it_waits_for_a_task_in_nobody_s_hands(owner: Member) -> None:
    row = received(owner)
    assert (row.state, row.replica, row.web) == ("received", "", "")
    assert response_json(row.pk)["status"] == "queued"


def test_it_places_it_and_hands_it_over(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner)
    assert request_dispatch(request_id=row.pk)
    row.refresh_from_db()
    assert (row.replica, row.epoch) == (replica.pk, engine.running.epoch)
    assert row.prompt_token_count > 0
    told(engine, row)
    assert (row.state, row.output_token_count) == ("finished", 5)
    assert response_json(row.pk)["status"] == "incomplete"


def test_it_hands_it_over_once_however_often_the_task_comes(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner)
    assert all(request_dispatch(request_id=row.pk) for _ in range(3))
    told(engine, row)
    assert request_dispatch(request_id=row.pk)
    assert engine.running.registry.counts.duplicates == 0


def test_it_asks_again_when_the_answer_was_lost(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner, max_output_tokens=LONGEST // 2)
    assert request_dispatch(request_id=row.pk)
    InferenceRequest.objects.filter(pk=row.pk).update(prompt_token_count=0)
    assert request_dispatch(request_id=row.pk)
    assert engine.running.registry.counts.duplicates == 1
    row.refresh_from_db()
    assert row.prompt_token_count > 0
    services.abort_open(caller=owner.caller, ids=[row.pk])
    row.refresh_from_db()
    InferenceRequest.objects.filter(pk=row.pk).update(prompt_token_count=0)
    assert request_dispatch(request_id=row.pk)  # one that is being aborted is aborted there first
    assert told(engine, row).state == "aborted"


def test_it_looks_again_while_nobody_can_take_it(
    owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[Any] = []
    monkeypatch.setattr(tasks, "dispatch_soon", lambda pk, **more: again.append((pk, more)))
    row = received(owner)
    tasks.response_submit(row.pk)
    tasks.response_submit(row.pk, attempt=4)
    tasks.response_submit(row.pk, attempt=tasks._LAST_LOOK)
    assert again == [
        (row.pk, {"attempt": 1, "after": 0.25}),
        (row.pk, {"attempt": 5, "after": 2.0}),
    ]
    row.refresh_from_db()
    assert row.state == "received"


def test_it_passes_by_a_replica_that_does_not_answer(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    Replica.objects.create(
        pk="a-ghost",
        epoch="e0",
        model=MODEL,
        bus_url="unix:/nonexistent/engine.sock",
        last_beat_at=timezone.now(),
        load={"running": 0, "waiting": 0, "total_slots": 4},
    )
    row = received(owner)
    assert request_dispatch(request_id=row.pk)
    row.refresh_from_db()
    assert row.replica == replica.pk


@pytest.mark.parametrize(
    ("deadline", "state", "cause"),
    [("deadline", "aborted", "deadline"), ("queue_deadline", "expired", "")],
)
def test_it_ends_what_no_engine_could_take_in_time(
    owner: Member, deadline: str, state: str, cause: str
) -> None:
    row = received(owner, **{deadline: 0.001})
    wait_until(lambda: requests_overdue() == [row.pk], what="nobody notices")
    assert request_dispatch(request_id=row.pk)
    row.refresh_from_db()
    assert (row.state, row.cause) == (state, cause)
    assert response_json(row.pk)["output"] == []


def test_it_does_not_touch_what_was_aborted_before(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner)
    services.abort_open(caller=owner.caller, ids=[row.pk])
    assert request_dispatch(request_id=row.pk)
    row.refresh_from_db()
    assert (row.state, row.replica) == ("aborted", "")
    assert not engine.running.registry.ended


def test_it_runs_nothing_that_is_aborted_before_its_task_comes_again(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = placed(received(owner), replica)
    abort = services.abort_open(caller=owner.caller, ids=[row.pk])
    row.refresh_from_db()
    assert row.state == "aborting"
    aged(row, 11)
    assert requests_overdue() == [row.pk]
    assert request_dispatch(request_id=row.pk)
    told(engine, row)
    target = AbortTarget.objects.get(abort=abort)
    assert (row.state, row.output_token_count, row.abort_id) == ("aborted", 0, abort.pk)
    assert (target.outcome, target.output_token_count) == ("aborted", 0)


def test_it_submits_nothing_that_the_record_may_have_given_up(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = placed(received(owner), replica)
    aged(row, SUBMIT_WITHIN + 1)
    assert request_dispatch(request_id=row.pk)
    assert not engine.running.registry.live
    assert not engine.running.registry.ended


def test_it_tells_why_an_engine_refused(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner, input="a" * (LONGEST + 1))
    assert request_dispatch(request_id=row.pk)
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("rejected", "context_length_exceeded")
    shown = response_json(row.pk)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "context_length_exceeded")


def test_it_takes_back_what_another_epoch_of_the_engine_took(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = placed(received(owner, max_output_tokens=LONGEST // 2), replica, epoch="gone")
    assert request_dispatch(request_id=row.pk)
    wait_until(lambda: engine.is_idle, what="it runs there")
    services.events_record(events=engine.running.publisher.waiting)
    row.refresh_from_db()
    assert (row.state, row.prompt_token_count) == ("queued", 0)


def test_it_finds_what_no_task_carries_on(owner: Member, replica: Replica) -> None:
    fresh, lost, stuck, taken = (received(owner) for _ in range(4))
    placed(stuck, replica)
    placed(taken, replica)
    services.request_accepted(request_id=taken.pk, generation=1, prompt_tokens=7)
    done = received(owner)
    services.abort_open(caller=owner.caller, ids=[done.pk])
    waiting = received(owner, background=False)
    for row in (lost, stuck, taken, done, waiting):
        aged(row, 11)
    assert requests_overdue() == [lost.pk, stuck.pk]
    assert fresh.pk not in requests_overdue()


def test_it_runs_elsewhere_what_its_lost_engine_had_not_begun(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    waiting, begun = (placed(received(owner), replica, epoch="lost") for _ in range(2))
    stopped = placed(received(owner), replica, epoch="lost")
    services.request_accepted(request_id=waiting.pk, generation=1, prompt_tokens=7)
    services.events_record(events=[Run.of(begun).schedule()])
    services.abort_open(caller=owner.caller, ids=[stopped.pk])
    assert services.requests_lose(replica=replica.pk, epoch="lost") == 2
    for row in (waiting, begun, stopped):
        row.refresh_from_db()
    assert (waiting.state, waiting.generation, waiting.replica) == ("received", 2, "")
    assert (begun.state, begun.error_code) == ("failed", "engine_lost")
    assert (stopped.state, stopped.error_code) == ("failed", "engine_lost")
    aged(waiting, 100)
    assert services.requests_stranded() == 0
    assert requests_overdue() == [waiting.pk]
    assert request_dispatch(request_id=waiting.pk)
    waiting.refresh_from_db()
    assert told(engine, waiting).state == "finished"
    assert (waiting.generation, waiting.output_token_count) == (2, 5)


def test_it_runs_again_only_once(owner: Member, replica: Replica) -> None:
    row = placed(received(owner), replica, epoch="lost")
    services.requests_lose(replica=replica.pk, epoch="lost")
    row.refresh_from_db()
    services.request_advance(
        request_id=row.pk,
        generation=2,
        trigger=Trigger.ENQUEUE,
        actor="tasks",
        fields={"replica": replica.pk, "epoch": "lost too"},
    )
    assert services.requests_lose(replica=replica.pk, epoch="lost too") == 1
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("failed", "engine_lost")


def test_it_leaves_it_to_the_sweep_while_the_broker_is_away(
    owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_options: Any) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(tasks.response_submit, "apply_async", away)
    dispatch_soon(received(owner).pk)


def test_it_submits_from_the_record_what_was_asked_for(owner: Member) -> None:
    asked = {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "instructions": "be brief",
        "background": True,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "stop": ["x"],
        "logit_bias": {5: -1.0},
        "priority": 0,
    }
    order = response_order(asked, client_id="")
    row = services.request_receive(caller=owner.caller, spec=order.new_request())
    row.refresh_from_db()
    found = submission_of(row)
    expected = order.submission(RequestKey(row.pk, 1), owner=str(row.owner_id), priority=0)
    assert found.attached is False
    assert (found.prompts, found.params) == (expected.prompts, expected.params)


def test_it_counts_deadlines_from_the_reception(owner: Member) -> None:
    row = received(owner, deadline=100.0, queue_deadline=50.0)
    InferenceRequest.objects.filter(pk=row.pk).update(
        deadline_at=timezone.now() + timedelta(seconds=40),
        queue_deadline_at=timezone.now() - timedelta(seconds=1),
    )
    row.refresh_from_db()
    found = submission_of(row)
    assert found.deadline is not None
    assert 30 < found.deadline <= 40
    assert found.queue_deadline == pytest.approx(0.001)


def test_it_erases_content_and_keeps_the_record(
    owner: Member, engine: EngineThread, replica: Replica
) -> None:
    row = received(owner, instructions="secret")
    assert not services.content_erase(request_id=row.pk)
    request_dispatch(request_id=row.pk)
    told(engine, row)
    assert services.content_erase(request_id=row.pk)
    row.refresh_from_db()
    choice = row.choices.get()
    assert (row.prompt, choice.text, choice.token_ids) == ([], "", [])
    assert (row.state, row.output_token_count, choice.output_token_count) == ("finished", 5, 5)
    assert "secret" not in str(row.params)
