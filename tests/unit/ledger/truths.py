"""What must hold in the ledger's rows at any moment, whatever came in, in whatever order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from inference.generation import FinishReason
from inference.lifecycle import TERMINAL, State, Trigger
from ledger.models import Abort, AbortTarget, Change, Choice, InferenceRequest, Transition
from tests.unit.ledger.engine import Run

_COURSE = {Trigger.SCHEDULE, Trigger.PREEMPT}


class Truth(Protocol):
    """A request as its engine sees it: which choices ended how, with how many tokens.

    `is_refused`: the record had ended it before it came, and it came to nothing.
    """

    run: Run
    open: list[int]
    is_sent: bool
    is_refused: bool
    ends: dict[int, tuple[FinishReason, int]]


@dataclass
class Record:
    """All rows, read once."""

    rows: list[InferenceRequest]
    steps: dict[str, list[Transition]]
    choices: dict[str, list[Choice]]
    changes: dict[str, list[Change]]
    targets: list[AbortTarget]
    aborts: list[Abort]

    @classmethod
    def now(cls) -> Record:
        steps = defaultdict(list)
        for step in Transition.objects.order_by("request_id", "seq"):
            steps[step.request_id].append(step)
        choices = defaultdict(list)
        for choice in Choice.objects.order_by("request_id", "index"):
            choices[choice.request_id].append(choice)
        changes = defaultdict(list)
        for change in Change.objects.filter(kind="request").order_by("pk"):
            changes[change.object_id].append(change)
        return cls(
            rows=list(InferenceRequest.objects.order_by()),
            steps=steps,
            choices=choices,
            changes=changes,
            targets=list(AbortTarget.objects.order_by()),
            aborts=list(Abort.objects.order_by().prefetch_related("tombstones")),
        )


def transitions_are_dense_and_end_once(record: Record) -> None:
    for row in record.rows:
        steps = record.steps[row.pk]
        assert [one.seq for one in steps] == list(range(1, row.transition_seq + 1))
        own = [one for one in steps if one.choice_index is None]
        assert own[-1].to_state == row.state
        assert all(one.to_state == two.from_state for one, two in pairwise(own))
        ends = [one for one in own if State(one.to_state) in TERMINAL]
        assert len(ends) == (1 if State(row.state) in TERMINAL else 0)
        assert (row.finished_at is not None) == bool(ends)
        assert [one.at for one in own] == sorted(one.at for one in own)
        requeues = [one for one in own if one.trigger == "requeue"]
        assert row.generation == 1 + len(requeues) <= 2
        for choice in record.choices[row.pk]:
            told = [one for one in steps if one.choice_index == choice.index]
            assert len(told) == (1 if choice.finish_reason else 0)
            assert choice.finish_reason or not ends


def counts_and_causes_are_true(record: Record, jobs: Mapping[str, Truth], lost: set[str]) -> None:
    """Of what its engine did not take with it, the record says what that engine did."""
    for row in record.rows:
        choices, job = record.choices[row.pk], jobs.get(row.pk)
        did = job.ends if job is not None and job.run.generation == row.generation else {}
        for choice in choices if row.pk not in lost else ():
            assert choice.output_token_count == len(choice.token_ids)
            if choice.finish_reason and did and job is not None:
                assert choice.index in did
                reason, tokens = did[choice.index]
                assert tokens == choice.output_token_count
                assert reason == choice.finish_reason or job.is_refused
        if State(row.state) not in TERMINAL:
            continue
        aborted = any(one.finish_reason == "abort" for one in choices)
        assert (row.state == "aborted") == aborted
        assert (row.cause != "") == aborted
        if row.pk not in lost:
            assert row.output_token_count == sum(one.output_token_count for one in choices)


def every_step_of_an_engine_happened_there(record: Record, jobs: Mapping[str, Truth]) -> None:
    """Each once at most, however often it was told."""
    for row in record.rows:
        job = jobs.get(row.pk)
        if job is None or job.run.generation != row.generation:
            continue
        did = Counter(one.trigger for one in job.run.timeline if one.trigger in _COURSE)
        told = Counter(
            one.trigger
            for one in record.steps[row.pk]
            if one.trigger in _COURSE and one.actor.startswith("engine:")
        )
        assert told <= did


def nothing_ends_before_its_engine_says_so(
    record: Record, jobs: Mapping[str, Truth], running: set[str]
) -> None:
    """What an engine of today still runs is live here, in the same generation."""
    for row in record.rows:
        if row.pk in running and row.generation == jobs[row.pk].run.generation:
            assert State(row.state) not in TERMINAL


def receipts_are_truthful_and_final(record: Record, outcomes: dict[int, tuple[str, bool]]) -> None:
    """`outcomes`: what each target said before."""
    rows = {row.pk: row for row in record.rows}
    pending: set[str] = set()
    for target in record.targets:
        before, was_confirmed = outcomes.get(target.pk, ("pending", False))
        assert before in {"pending", target.outcome}
        assert not was_confirmed or target.confirmed_at is not None
        outcomes[target.pk] = target.outcome, target.confirmed_at is not None
        if target.outcome == "pending":
            pending.add(target.abort_id)
        if target.request_id is None:
            assert target.outcome == "not_found"
        else:
            target_is_truthful(target, rows[target.request_id])
    for abort in record.aborts:
        waits = abort.state == "accepted" and bool(abort.tombstones.all())
        is_settled = abort.pk not in pending and not waits
        assert (abort.state == "done") == is_settled == (abort.done_at is not None)


def target_is_truthful(target: AbortTarget, row: InferenceRequest) -> None:
    is_live = State(row.state) not in TERMINAL
    if target.outcome in {"pending", "unconfirmed"}:
        is_confirmed = target.outcome == "unconfirmed" and target.confirmed_at is not None
        assert is_live != is_confirmed
        return
    assert not is_live
    assert (target.outcome == "aborted") == (row.state == "aborted")
    assert (target.released_at is not None) == (target.outcome == "aborted")
    assert target.output_token_count == row.output_token_count


def changes_cover_every_transition_once(record: Record) -> None:
    for row in record.rows:
        seqs = [
            number
            for one in record.changes[row.pk]
            for number in range(one.first_seq, one.last_seq + 1)
        ]
        assert seqs == list(range(1, row.transition_seq + 1))
