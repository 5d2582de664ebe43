"""What must hold in the ledger's rows at any moment, whatever came in, in whatever order."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

from inference.generation import FinishReason
from inference.lifecycle import TERMINAL, State
from ledger.models import Abort, AbortTarget, Change, InferenceRequest, Transition
from tests.unit.ledger.engine import Run


class Truth(Protocol):
    """A request as its engine sees it: which choices ended how, with how many tokens.

    `is_refused`: the record had ended it before it came, and it came to nothing.
    """

    run: Run
    open: list[int]
    is_sent: bool
    is_refused: bool
    ends: dict[int, tuple[FinishReason, int]]


def transitions_are_dense_and_end_once() -> None:
    for row in InferenceRequest.objects.prefetch_related("transitions", "choices"):
        steps = sorted(row.transitions.all(), key=lambda one: one.seq)
        assert [one.seq for one in steps] == list(range(1, row.transition_seq + 1))
        own = [one for one in steps if one.choice_index is None]
        assert own[-1].to_state == row.state
        assert all(one.to_state == two.from_state for one, two in pairwise(own))
        ends = [one for one in own if State(one.to_state) in TERMINAL]
        assert len(ends) == (0 if row.is_live else 1)
        assert (row.finished_at is None) == row.is_live
        assert [one.at for one in own] == sorted(one.at for one in own)
        requeues = [one for one in own if one.trigger == "requeue"]
        assert row.generation == 1 + len(requeues) <= 2
        for choice in row.choices.all():
            told = [one for one in steps if one.choice_index == choice.index]
            assert len(told) == (1 if choice.finish_reason else 0)
            assert row.is_live or choice.finish_reason


def counts_and_causes_are_true(jobs: Mapping[str, Truth], lost: set[str]) -> None:
    """Of what its engine did not take with it, the record says what that engine did."""
    for row in InferenceRequest.objects.prefetch_related("choices"):
        choices = list(row.choices.all())
        job = jobs.get(row.pk)
        did = job.ends if job is not None and job.run.generation == row.generation else {}
        for choice in choices if row.pk not in lost else ():
            assert choice.output_token_count == len(choice.token_ids)
            if choice.finish_reason and did and job is not None:
                reason, tokens = did[choice.index]
                assert tokens == choice.output_token_count
                assert reason == choice.finish_reason or job.is_refused
        if row.is_live:
            continue
        aborted = any(one.finish_reason == "abort" for one in choices)
        assert (row.state == "aborted") == aborted
        assert (row.cause != "") == aborted
        if row.pk not in lost:
            assert row.output_token_count == sum(one.output_token_count for one in choices)


def nothing_ends_before_its_engine_says_so(running: set[str], jobs: Mapping[str, Truth]) -> None:
    """What an engine of today still runs is live here, in the same generation."""
    for row in InferenceRequest.objects.filter(pk__in=running):
        if row.generation == jobs[row.pk].run.generation:
            assert row.is_live


def receipts_are_truthful_and_final(outcomes: dict[int, tuple[str, bool]]) -> None:
    """`outcomes`: what each target said before."""
    for target in AbortTarget.objects.select_related("request", "abort"):
        before, was_confirmed = outcomes.get(target.pk, ("pending", False))
        assert before in {"pending", target.outcome}
        assert not was_confirmed or target.confirmed_at is not None
        outcomes[target.pk] = target.outcome, target.confirmed_at is not None
        row = target.request
        if row is None:
            assert target.outcome == "not_found"
        elif target.outcome in {"pending", "unconfirmed"}:
            is_confirmed = target.outcome == "unconfirmed" and target.confirmed_at is not None
            assert row.is_live != is_confirmed
        else:
            assert not row.is_live
            assert (target.outcome == "aborted") == (row.state == "aborted")
            assert (target.released_at is not None) == (target.outcome == "aborted")
            assert target.output_token_count == row.output_token_count
    for abort in Abort.objects.prefetch_related("targets", "tombstones"):
        settled = all(one.outcome != "pending" for one in abort.targets.all())
        waits = abort.state == "accepted" and abort.tombstones.exists()
        assert (abort.state == "done") == (settled and not waits) == (abort.done_at is not None)


def changes_cover_every_transition_once() -> None:
    for row in InferenceRequest.objects.all():
        spans = Change.objects.filter(kind="request", object_id=row.pk).order_by("pk")
        seqs = [n for one in spans for n in range(one.first_seq, one.last_seq + 1)]
        assert seqs == list(range(1, row.transition_seq + 1))
    assert Transition.objects.count() == sum(
        InferenceRequest.objects.values_list("transition_seq", flat=True)
    )
