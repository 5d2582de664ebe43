from __future__ import annotations

import pytest

from inference.errors import ConflictError, InvalidRequestError, NotFoundError
from inference.lifecycle import Trigger
from ledger.ids import response_id
from ledger.models import Change, Choice, InferenceRequest, Transition
from ledger.selectors import request_get, requests_resolve, requests_visible
from ledger.services import events_record, request_advance, requests_lose
from ledger.specs import RequestFilter
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run


def steps(row: InferenceRequest) -> list[tuple[int, str, str]]:
    found = Transition.objects.filter(request=row, choice_index=None).order_by("seq")
    return [(one.seq, one.trigger, one.to_state) for one in found]


def test_it_opens_a_request_as_received_and_queued(submit: Submit, owner: Member) -> None:
    row = submit(owner, choice_count=2, n=2)
    row.refresh_from_db()
    assert (row.state, row.replica, row.epoch, row.generation) == ("queued", "r0", "e1", 1)
    assert steps(row) == [(1, "receive", "received"), (2, "enqueue", "queued")]
    assert row.transition_seq == 2
    assert row.queued_at is not None
    assert row.queued_at >= row.received_at
    assert Choice.objects.filter(request=row, finish_reason="").count() == 2
    change = Change.objects.get(object_id=row.pk)
    assert (change.first_seq, change.last_seq) == (1, 2)


def test_it_holds_a_request_that_has_no_place_yet(submit: Submit, owner: Member) -> None:
    row = submit(owner, placement=None)
    assert row.state == "held"
    assert row.held_at is not None


def test_it_refuses_a_client_id_that_a_live_request_bears(
    submit: Submit, owner: Member, teammate: Member, stranger: Member
) -> None:
    row = submit(owner, client_id="job-1")
    with pytest.raises(ConflictError):
        submit(teammate, client_id="job-1")
    submit(stranger, client_id="job-1")
    events_record(events=[Run.of(row).finish()])
    submit(teammate, client_id="job-1")


@pytest.mark.parametrize("client_id", ["a b", "x" * 129, "req_1", "chatcmpl-1", "abt_0", "é"])
def test_it_refuses_a_client_id_that_breaks_the_rule(
    submit: Submit, owner: Member, client_id: str
) -> None:
    with pytest.raises(InvalidRequestError):
        submit(owner, client_id=client_id)


def test_it_stores_text_that_a_database_would_refuse(submit: Submit, owner: Member) -> None:
    row = submit(owner, prompt=["a\x00b\ud800"], metadata={"k\x00": "v"})
    row.refresh_from_db()
    assert row.prompt == ["a\ufffdb\ufffd"]
    assert row.metadata == {"k\ufffd": "v"}


def test_it_clamps_priority_to_that_of_the_key(submit: Submit, owner: Member) -> None:
    assert submit(owner, priority=9).priority == 0
    assert submit(owner, priority=-2).priority == -2


def test_it_finds_a_request_by_each_of_its_ids(
    submit: Submit, owner: Member, teammate: Member, stranger: Member, operator: Member
) -> None:
    row = submit(owner, client_id="job-1")
    for any_id in (row.pk, response_id(row.pk, "chat"), response_id(row.pk, "response"), "job-1"):
        for member in (owner, teammate, operator):
            assert request_get(caller=member.caller, any_id=any_id).pk == row.pk
        with pytest.raises(NotFoundError):
            request_get(caller=stranger.caller, any_id=any_id)
    for nothing in ("nothing", row.pk[:-1], f"req_{'0' * 32}", "\x00", ""):
        with pytest.raises(NotFoundError):
            request_get(caller=owner.caller, any_id=nothing)


def test_it_prefers_the_live_bearer_of_a_client_id(submit: Submit, owner: Member) -> None:
    first = submit(owner, client_id="job")
    events_record(events=[Run.of(first).finish()])
    second = submit(owner, client_id="job")
    events_record(events=[Run.of(second).finish()])
    assert request_get(caller=owner.caller, any_id="job").pk == second.pk
    third = submit(owner, client_id="job")
    assert request_get(caller=owner.caller, any_id="job").pk == third.pk


def test_it_calls_a_foreign_client_id_ambiguous_for_an_operator(
    submit: Submit, owner: Member, stranger: Member, operator: Member
) -> None:
    row = submit(owner, client_id="job")
    assert requests_resolve(caller=operator.caller, requested_ids=["job"])[0].request_id == row.pk
    submit(stranger, client_id="job")
    found = requests_resolve(caller=operator.caller, requested_ids=["job"])[0]
    assert (found.request_id, found.detail) == (None, "ambiguous")


def test_it_filters_by_metadata_and_the_rest(submit: Submit, owner: Member) -> None:
    row = submit(owner, metadata={"job": "7", "it's": 'a"b'}, model="other")
    submit(owner, metadata={"job": "8"})

    def found(**filters: object) -> list[str]:
        wanted = RequestFilter(**filters)  # type: ignore[arg-type]  # a test's shorthand
        return [one.pk for one in requests_visible(caller=owner.caller, filters=wanted)]

    assert found(metadata={"job": "7"}) == [row.pk]
    assert found(metadata={"it's": 'a"b'}) == [row.pk]
    assert found(metadata={"nothing": "7"}) == []
    assert found(model="other", state="queued", owner="tenant") == [row.pk]
    assert found(older_than=60) == []


def test_it_takes_a_step_only_where_it_applies(submit: Submit, owner: Member) -> None:
    row = submit(owner)

    def step(trigger: Trigger, generation: int = 1) -> bool:
        return request_advance(
            request_id=row.pk,
            generation=generation,
            trigger=trigger,
            actor="web:1",
            fields={"error_code": "queue_full"},
        )

    assert not step(Trigger.REJECT, generation=2)
    assert not step(Trigger.PREEMPT)
    assert step(Trigger.REJECT)
    assert not step(Trigger.REJECT)
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("rejected", "queue_full")
    choice = row.choices.get()
    assert (choice.finish_reason, choice.error_code) == ("error", "queue_full")


def test_it_ends_what_a_lost_engine_held(submit: Submit, owner: Member) -> None:
    lost, kept, done = submit(owner), submit(owner), submit(owner)
    events_record(events=[Run.of(lost).schedule(), Run.of(done).finish()])
    assert requests_lose(replica="r0", epoch="e2", received=None) == 0
    assert requests_lose(replica="r0", epoch="e1", received={lost.pk: 5, done.pk: 9}) == 1
    assert requests_lose(replica="r0", epoch="e1", received=None) == 1
    for row in (lost, kept, done):
        row.refresh_from_db()
    assert (lost.state, lost.error_code, lost.output_token_count) == ("failed", "engine_lost", 5)
    assert (kept.state, kept.output_token_count) == ("failed", 0)
    assert (done.state, done.output_token_count) == ("finished", 3)
    assert lost.choices.get().output_token_count == 5
