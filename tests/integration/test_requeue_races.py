"""A requeue that meets aborts of the same requests: each ends once, and is told truthfully."""

from __future__ import annotations

from typing import Any

import pytest

from inference.lifecycle import Trigger
from ledger.models import Abort, InferenceRequest
from ledger.selectors import abort_receipt
from ledger.services import (
    abort_open,
    abort_review,
    request_advance,
    requests_lose,
    requests_requeue,
)
from ledger.specs import Received
from tests.cast import Member
from tests.integration.test_ledger_races import race
from tests.unit.ledger.desk import submitted

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def in_memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    monkeypatch.setattr("ledger.enqueue.abort_carry_out_soon", lambda abort_id: None)


def lose_and_place(rows: list[InferenceRequest]) -> None:
    """As a web process does that has lost one engine and has another."""
    told = [Received(request_id=row.pk, generation=1) for row in rows]
    fields = {"replica": "r1", "epoch": "f1", "web": "web-1"}
    for request_id in requests_requeue(replica="r0", epoch="e1", received=told):
        request_advance(
            request_id=request_id,
            generation=2,
            trigger=Trigger.ENQUEUE,
            actor="web:web-1",
            fields=fields,
        )


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_it_lets_nothing_slip_between_a_requeue_and_an_abort(
    owner: Member, operator: Member, rounds: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large set is fixed first and reaches its rows later."""
    for _ in range(6 * rounds):
        rows = [submitted(owner) for _ in range(4)]
        ids = [row.pk for row in rows]
        with monkeypatch.context() as patch:
            patch.setattr("ledger.services.aborts.AT_ONCE", 1 if large else 500)
            race(
                lambda rows=rows: lose_and_place(rows),
                lambda ids=ids: abort_open(caller=owner.caller, ids=ids),
                lambda: abort_open(caller=operator.caller, everything=True),
            )
        for abort in Abort.objects.exclude(state="done"):
            abort_review(abort_id=abort.pk)
        live = InferenceRequest.objects.filter(state__in=("received", "queued"))
        assert not live.exists(), "an abort missed a request"
        # Those that were placed again have been asked about; their second engine goes, too.
        requests_lose(replica="r1", epoch="f1")
        assert not InferenceRequest.objects.filter(state="aborting").exists()
        for abort in Abort.objects.all():
            receipt = abort_receipt(abort=abort)
            assert receipt["status"] == "done"
            outcomes = {one["outcome"] for one in receipt["targets"]}
            assert outcomes <= {"aborted", "engine_lost", "already_finished"}
