from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from ledger.models import AbortTarget, Choice, InferenceRequest
from ledger.services import abort_open
from ledger.services.bulk import rows_update
from tests.cast import Member
from tests.unit.ledger.desk import Submit


def test_it_writes_each_row_its_own_values(submit: Submit, owner: Member) -> None:
    rows = [submit(owner) for _ in range(3)]
    at = timezone.now()
    updates = [
        (
            {"id": row.pk, "transition_seq": 2},
            {
                "reason": f"it's %s {number}",
                "finished_at": at + timedelta(seconds=number) if number else None,
                "busy_seconds": number / 3,
                "stream": bool(number % 2),
                "metadata": {"number": [number, None]},
                "transition_seq": 3 + number,
            },
        )
        for number, row in enumerate(rows)
    ]
    rows_update(InferenceRequest, updates, what="requests")
    for number, row in enumerate(rows):
        row.refresh_from_db()
        assert (row.reason, row.metadata) == (f"it's %s {number}", {"number": [number, None]})
        assert row.finished_at == (at + timedelta(seconds=number) if number else None)
        assert (row.busy_seconds, row.stream) == (number / 3, bool(number % 2))
        assert row.transition_seq == 3 + number


def test_it_takes_rows_that_change_in_different_columns(submit: Submit, owner: Member) -> None:
    one, two = submit(owner), submit(owner)
    rows_update(
        InferenceRequest,
        [({"id": one.pk}, {"reason": "a"}), ({"id": two.pk}, {"reason": "b", "cause": "api"})],
        what="requests",
    )
    found = InferenceRequest.objects.order_by("reason").values_list("reason", "cause")
    assert list(found) == [("a", ""), ("b", "api")]


def test_it_keeps_json_null_apart_from_json(submit: Submit, owner: Member) -> None:
    choice = submit(owner).choices.get()
    for value in ([1.5, "x"], None, "stop", 7):
        rows_update(Choice, [({"id": choice.pk}, {"stop_reason": value})], what="choices")
        choice.refresh_from_db()
        assert choice.stop_reason == value
    assert Choice.objects.filter(logprobs__isnull=True).exists()


def test_it_refuses_where_a_row_is_not_what_it_had_to_be(submit: Submit, owner: Member) -> None:
    row = submit(owner)
    with pytest.raises(RuntimeError, match="requests changed"):
        rows_update(
            InferenceRequest,
            [({"id": row.pk, "transition_seq": 1}, {"reason": "never"})],
            what="requests",
        )


def test_it_does_not_cut_what_a_column_refuses(submit: Submit, owner: Member) -> None:
    """A cast would do so in silence."""
    row = submit(owner)
    abort_open(caller=owner.caller, ids=[row.pk])
    target = AbortTarget.objects.get()
    from django.db import DataError, connection

    update = [({"id": target.pk}, {"outcome": "x" * 30})]
    if connection.vendor == "postgresql":
        with pytest.raises(DataError):
            rows_update(AbortTarget, update, what="targets")
    else:
        rows_update(AbortTarget, update, what="targets")
