"""Everything at once, in any order: the ledger against an engine that tells late, twice, or never.

The machine plays web processes, clients, an engine and its restarts. What the engine did is its
own truth (`Run`); what it told waits in an outbox, to be delivered whenever, and again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inference.events import RequestEvent
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import TERMINAL, State, Trigger
from inference.wire import AbortInfo
from ledger.models import Abort, AbortTarget, Change, InferenceRequest, Transition
from ledger.services import (
    abort_holders,
    abort_open,
    abort_review,
    events_record,
    request_advance,
    requests_lose,
)
from ledger.specs import Placement
from tests.cast import Member, member
from tests.unit.ledger.desk import submitted
from tests.unit.ledger.engine import Run

PICK = st.integers(min_value=0, max_value=1_000_000)


@dataclass
class Job:
    """One request as its engine sees it. `open`: choices that it still runs."""

    run: Run
    open: list[int]
    told: list[RequestEvent] = field(default_factory=list)
    is_running: bool = False


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.block = transaction.atomic()
        self.block.__enter__()
        self.jobs: dict[str, Job] = {}
        self.epoch = 1
        self.outbox: list[RequestEvent] = []
        self.past: list[RequestEvent] = []
        self.held: list[str] = []
        self.aborts: list[Abort] = []
        self.outcomes: dict[int, str] = {}
        self.lost: set[str] = set()

    @initialize()
    def meet(self) -> None:
        self.owner: Member = member("owner", owner_name="tenant")
        self.stranger: Member = member("stranger", owner_name="elsewhere")

    # -- web and clients

    @rule(choices=st.integers(1, 3), holds=st.booleans())
    def submit(self, choices: int, holds: bool) -> None:
        place = None if holds else Placement(replica="r0", epoch=f"e{self.epoch}", web="w")
        row = submitted(self.owner, placement=place, choice_count=choices, n=choices)
        if holds:
            self.held.append(row.pk)
        else:
            self.jobs[row.pk] = Job(Run.of(row), list(range(choices)))

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def place_what_is_held(self, pick: int) -> None:
        request_id = self.held.pop(pick % len(self.held))
        fields = {"replica": "r0", "epoch": f"e{self.epoch}", "web": "w"}
        if request_advance(
            request_id=request_id,
            generation=1,
            trigger=Trigger.ENQUEUE,
            actor="web",
            fields=fields,
        ):
            row = InferenceRequest.objects.get(pk=request_id)
            self.jobs[request_id] = Job(Run.of(row), list(range(row.choice_count)))

    @precondition(lambda self: self.jobs or self.held)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4), unknown=st.booleans())
    def abort(self, picks: list[int], unknown: bool) -> None:
        known = [*self.jobs, *self.held]
        ids = [known[pick % len(known)] for pick in picks] + (["nobody"] if unknown else [])
        self.aborts.append(abort_open(caller=self.owner.caller, ids=ids))

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK)
    def abort_as_a_stranger(self, pick: int) -> None:
        request_id = list(self.jobs)[pick % len(self.jobs)]
        abort = abort_open(caller=self.stranger.caller, ids=[request_id])
        assert abort.targets.get().outcome == "not_found"

    @rule()
    def abort_all(self) -> None:
        self.aborts.append(abort_open(caller=self.owner.caller, everything=True))

    # -- the engine

    def _running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.open and job.run.epoch == f"e{self.epoch}"]

    @precondition(lambda self: self._running())
    @rule(pick=PICK)
    def schedule_or_preempt(self, pick: int) -> None:
        job = self._pick(pick)
        self._say(job.run.preempt() if job.is_running else job.run.schedule())
        job.is_running = not job.is_running

    @precondition(lambda self: self._running())
    @rule(pick=PICK, tokens=st.integers(0, 5))
    def end_a_choice(self, pick: int, tokens: int) -> None:
        job = self._pick(pick)
        index = job.open.pop(pick % len(job.open))
        trigger = None if job.open else Trigger.FINISH
        self._say(job.run.end_choice(index, tokens=tokens, trigger=trigger))

    @precondition(lambda self: self._running())
    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        job = self._pick(pick)
        while job.open:
            index = job.open.pop()
            trigger = None if job.open else Trigger.FAIL
            self._say(
                job.run.end_choice(
                    index,
                    tokens=1,
                    reason=FinishReason.ERROR,
                    trigger=trigger,
                    error_code="engine_error",
                )
            )

    @precondition(lambda self: self._running())
    @rule(pick=PICK)
    def lose_a_client(self, pick: int) -> None:
        self._abort(self._pick(pick), AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED))

    @precondition(lambda self: self.aborts)
    @rule(pick=PICK)
    def obey(self, pick: int) -> None:
        abort = self.aborts[pick % len(self.aborts)]
        info = AbortInfo(id=abort.pk, cause=AbortCause.API)
        for keys in abort_holders(abort=abort).values():
            for key in keys:
                job = self.jobs[key.request_id]
                if job.open and job.run.epoch == f"e{self.epoch}":
                    self._abort(job, info)

    @rule()
    def lose_the_engine(self) -> None:
        epoch = f"e{self.epoch}"
        self.epoch += 1
        requests_lose(replica="r0", epoch=epoch, received=None)
        self.lost |= {pk for pk, job in self.jobs.items() if job.run.epoch == epoch}

    # -- the broker and the clock

    @precondition(lambda self: self.outbox)
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        self._deliver([self.outbox.pop(pick % len(self.outbox))])

    @precondition(lambda self: self.outbox)
    @rule(order=st.randoms(use_true_random=False))
    def deliver_all_shuffled(self, order: object) -> None:
        batch, self.outbox = self.outbox, []
        order.shuffle(batch)  # type: ignore[attr-defined]  # hypothesis gives a Random
        self._deliver(batch)

    @precondition(lambda self: self.past)
    @rule(pick=PICK)
    def deliver_again(self, pick: int) -> None:
        self._deliver([self.past[pick % len(self.past)]])

    @precondition(lambda self: self.aborts)
    @rule(pick=PICK, due=st.booleans())
    def review(self, pick: int, due: bool) -> None:
        abort = self.aborts[pick % len(self.aborts)]
        if due:
            past = timezone.now() - timedelta(seconds=1)
            Abort.objects.filter(pk=abort.pk).update(deadline_at=past)
        abort_review(abort_id=abort.pk)

    def _pick(self, pick: int) -> Job:
        running = self._running()
        return running[pick % len(running)]

    def _abort(self, job: Job, info: AbortInfo) -> None:
        while job.open:
            index = job.open.pop(0)
            trigger = None if job.open else Trigger.ABORT_CONFIRM
            event = job.run.end_choice(
                index, tokens=2, reason=FinishReason.ABORT, trigger=trigger, abort=info
            )
            self._say(event)

    def _say(self, event: RequestEvent) -> None:
        self.outbox.append(event)

    def _deliver(self, batch: list[RequestEvent]) -> None:
        self.past += batch
        recorded = events_record(events=batch)
        assert (recorded.unknown, recorded.gaps) == (0, 0)
        assert recorded.applied + recorded.duplicates + recorded.late == len(batch)

    # -- what must hold, always

    @invariant()
    def transitions_are_dense_and_end_once(self) -> None:
        for row in InferenceRequest.objects.prefetch_related("transitions", "choices"):
            steps = sorted(row.transitions.all(), key=lambda one: one.seq)
            assert [one.seq for one in steps] == list(range(1, row.transition_seq + 1))
            own = [one for one in steps if one.choice_index is None]
            assert own[-1].to_state == row.state
            ends = [one for one in own if State(one.to_state) in TERMINAL]
            assert len(ends) == (0 if row.is_live else 1)
            assert (row.finished_at is None) == row.is_live
            assert [one.at for one in own] == sorted(one.at for one in own)
            for choice in row.choices.all():
                told = [one for one in steps if one.choice_index == choice.index]
                assert len(told) == (1 if choice.finish_reason else 0)
                assert row.is_live or choice.finish_reason

    @invariant()
    def counts_and_causes_are_true(self) -> None:
        for row in InferenceRequest.objects.prefetch_related("choices"):
            choices = list(row.choices.all())
            for choice in choices:
                assert row.pk in self.lost or choice.output_token_count == len(choice.token_ids)
            if row.is_live:
                continue
            aborted = any(one.finish_reason == "abort" for one in choices)
            assert (row.state == "aborted") == aborted
            assert (row.cause != "") == aborted
            if row.pk not in self.lost:
                assert row.output_token_count == sum(one.output_token_count for one in choices)

    @invariant()
    def receipts_are_truthful_and_final(self) -> None:
        for target in AbortTarget.objects.select_related("request", "abort"):
            before = self.outcomes.get(target.pk, "pending")
            assert before in {"pending", target.outcome}
            self.outcomes[target.pk] = target.outcome
            row = target.request
            if row is None:
                assert target.outcome == "not_found"
            elif target.outcome in {"pending", "unconfirmed"}:
                assert row.is_live or (target.outcome == "unconfirmed" and target.confirmed_at)
            else:
                assert not row.is_live
                assert (target.outcome == "aborted") == (row.state == "aborted")
                assert target.output_token_count == row.output_token_count
        for abort in Abort.objects.prefetch_related("targets"):
            settled = all(one.outcome != "pending" for one in abort.targets.all())
            assert (abort.state == "done") == settled == (abort.done_at is not None)

    @invariant()
    def changes_cover_every_transition_once(self) -> None:
        for row in InferenceRequest.objects.all():
            spans = Change.objects.filter(kind="request", object_id=row.pk).order_by("pk")
            seqs = [n for one in spans for n in range(one.first_seq, one.last_seq + 1)]
            assert seqs == list(range(1, row.transition_seq + 1))
        assert Transition.objects.count() == sum(
            InferenceRequest.objects.values_list("transition_seq", flat=True)
        )

    def teardown(self) -> None:
        """In the end all is told, nothing is live, and every receipt is closed."""
        try:
            for abort in self.aborts:
                abort_review(abort_id=abort.pk)
            for job in self._running():
                self._abort(job, AbortInfo(cause=AbortCause.SHUTDOWN))
            batch, self.outbox = self.outbox, []
            self._deliver(batch)
            abort_open(caller=self.owner.caller, everything=True)
            assert not [row.pk for row in InferenceRequest.objects.all() if row.is_live]
            assert not Abort.objects.exclude(state="done").exists()
            for check in (
                self.transitions_are_dense_and_end_once,
                self.counts_and_causes_are_true,
                self.receipts_are_truthful_and_final,
            ):
                check()
        finally:
            transaction.set_rollback(True)
            self.block.__exit__(None, None, None)


@pytest.mark.django_db
def test_it_keeps_the_record_true_whatever_comes_in_whatever_order(rounds: int) -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(max_examples=20 * rounds, stateful_step_count=30, deadline=None),
    )
