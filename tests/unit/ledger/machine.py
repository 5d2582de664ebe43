"""Everything at once, in any order: the ledger against an engine that tells late, twice, or never.

The machine plays web processes, clients, operators, an engine and its restarts, the broker and the
clock. What the engine did is its own truth (`Job`); what it told waits in an outbox, to be
delivered whenever, and again. `truths` has what must hold after every step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.errors import ConflictError, FencedError
from inference.events import RequestEvent
from inference.generation import AbortCause, FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import Abort, InferenceRequest, Replica, Tombstone
from ledger.services import (
    abort_holders,
    abort_open,
    abort_review,
    events_record,
    fence_lift,
    request_advance,
    requests_answered,
    requests_doubtful,
    requests_lose,
    requests_requeue,
)
from ledger.specs import Placement, Received
from tests.cast import Member, member
from tests.unit.ledger import truths
from tests.unit.ledger.desk import submitted
from tests.unit.ledger.engine import Run

PICK = st.integers(min_value=0, max_value=1_000_000)
NAMES = st.sampled_from(["", "", "a", "b"])
SELDOM = st.sampled_from([False, False, False, True])
TOKENS = st.sampled_from([0, 1, 5])


@dataclass
class Job:
    """One request as its engine sees it. `open`: choices that it still runs; `ends`: the others.

    `is_sent`: it was submitted. `is_refused`: should it come now, it ends at once.
    """

    run: Run
    open: list[int]
    is_sent: bool = True
    is_refused: bool = False
    is_running: bool = False
    has_run: bool = False
    ends: dict[int, tuple[FinishReason, int]] = field(default_factory=dict)


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
        self.outcomes: dict[int, tuple[str, bool]] = {}
        self.lost: set[str] = set()
        self.seen: set[int] = set()
        self.stones: set[str] = set()
        self.is_fenced = False
        self.later = timedelta(0)

    @initialize()
    def meet(self) -> None:
        self.owner: Member = member("owner", owner_name="tenant")
        self.stranger: Member = member("stranger", owner_name="elsewhere")
        self.operator = member("operator", owner_name="ops", scopes=("infer", "operate"))
        Replica.objects.create(
            id="r0", epoch="e1", model="tiny", bus_url="unix:/x", last_beat_at=timezone.now()
        )
        self._submit(2, "", holds=False, sends=True)

    # -- web and clients

    @property
    def place(self) -> Placement:
        return Placement(replica="r0", epoch=f"e{self.epoch}", web="w")

    @rule(choices=st.integers(1, 3), name=NAMES)
    def submit(self, choices: int, name: str) -> None:
        self._submit(choices, name, holds=False, sends=True)

    @rule(choices=st.integers(1, 2), name=NAMES, holds=st.booleans())
    def hold_or_forget(self, choices: int, name: str, holds: bool) -> None:
        """A row that waits for a place, or whose web process dies before it submits."""
        self._submit(choices, name, holds=holds, sends=False)

    def _submit(self, choices: int, name: str, *, holds: bool, sends: bool) -> None:
        live = InferenceRequest.objects.filter(client_id=name, owner=self.owner.owner)
        is_taken = name != "" and any(row.is_live for row in live)
        place = None if holds else self.place
        ask = {"placement": place, "choice_count": choices, "n": choices, "client_id": name}
        if self.is_fenced or is_taken:
            with pytest.raises(FencedError if self.is_fenced else ConflictError):
                submitted(self.owner, **ask)
            return
        row = submitted(self.owner, **ask)
        assert (row.state == "aborted") == (name in self.stones)
        if not row.is_live:
            return
        if holds:
            self.held.append(row.pk)
        else:
            self.jobs[row.pk] = Job(Run.of(row), list(range(choices)), is_sent=sends)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def place_what_is_held(self, pick: int) -> None:
        self._place(self.held.pop(pick % len(self.held)))

    def _place(self, request_id: str) -> None:
        row = InferenceRequest.objects.get(pk=request_id)
        place = self.place
        fields = {"replica": place.replica, "epoch": place.epoch, "web": place.web}
        if request_advance(
            request_id=request_id,
            generation=row.generation,
            trigger=Trigger.ENQUEUE,
            actor="web",
            fields=fields,
        ):
            row.refresh_from_db()
            self.jobs[request_id] = Job(Run.of(row), list(range(row.choice_count)))

    @precondition(lambda self: self.jobs or self.held)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4), unknown=st.booleans())
    def abort(self, picks: list[int], unknown: bool) -> None:
        known = [*self.jobs, *self.held]
        ids = [known[pick % len(known)] for pick in picks] + (["nobody"] if unknown else [])
        key = f"key-{len(self.aborts)}"
        for _ in range(2):  # a client that repeats itself
            abort = abort_open(
                caller=self.owner.caller, ids=ids, idempotency_key=key, body_digest="d"
            )
        assert Abort.objects.filter(idempotency_key=key).count() == 1
        self.aborts.append(abort)
        refused = abort_open(caller=self.stranger.caller, ids=ids)
        assert {one.outcome for one in refused.targets.all()} == {"not_found"}

    @precondition(lambda self: len(self.aborts) < 4)
    @rule(name=st.sampled_from(["a", "b"]), seconds=st.sampled_from([None, 30.0]))
    def abort_by_name(self, name: str, seconds: float | None) -> None:
        means_nothing = not InferenceRequest.objects.filter(client_id=name).exists()
        self.aborts.append(abort_open(caller=self.owner.caller, ids=[name], tombstone=seconds))
        if seconds and means_nothing:
            self.stones.add(name)

    @precondition(lambda self: self.stones)
    @rule()
    def let_tombstones_expire(self) -> None:
        Tombstone.objects.update(expires_at=timezone.now())
        self.stones = set()

    @precondition(lambda self: self.jobs or self.held)
    @rule(fences=SELDOM)
    def abort_all(self, fences: bool) -> None:
        caller = self.operator.caller if fences else self.owner.caller
        self.aborts.append(abort_open(caller=caller, everything=True, fence=fences))
        self.is_fenced = self.is_fenced or fences

    @precondition(lambda self: self.is_fenced)
    @rule()
    def resume(self) -> None:
        assert fence_lift(caller=self.operator.caller) > 0
        self.is_fenced = False

    # -- the engine

    def is_here(self, job: Job) -> bool:
        return job.is_sent and bool(job.open) and job.run.epoch == f"e{self.epoch}"

    def _running(self) -> list[Job]:
        return [job for job in self.jobs.values() if self.is_here(job)]

    @precondition(lambda self: self._running())
    @rule(pick=PICK)
    def schedule_or_preempt(self, pick: int) -> None:
        job = self._pick(pick)
        self._say(job.run.preempt() if job.is_running else job.run.schedule())
        job.is_running, job.has_run = not job.is_running, True

    @precondition(lambda self: self._running())
    @rule(pick=PICK, tokens=TOKENS, fails=SELDOM)
    def end_a_choice(self, pick: int, tokens: int, fails: bool) -> None:
        job = self._pick(pick)
        reason = FinishReason.ERROR if fails else FinishReason.STOP
        self._end(job, job.open[pick % len(job.open)], reason, tokens=tokens)

    @precondition(lambda self: self._running())
    @rule(pick=PICK, tells=st.booleans())
    def lose_a_client(self, pick: int, tells: bool) -> None:
        """`tells`: the end of its first choice is told at once, and the rest later."""
        before = len(self.outbox)
        self._abort(self._pick(pick), AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED))
        if tells:
            self._deliver([self.outbox.pop(before)])

    @precondition(lambda self: self.aborts)
    @rule(pick=PICK)
    def obey(self, pick: int) -> None:
        abort = self.aborts[pick % len(self.aborts)]
        info = AbortInfo(id=abort.pk, cause=AbortCause.API)
        for keys in abort_holders(abort=abort).values():
            for key in keys:
                job = self.jobs[key.request_id]
                if job.run.generation == key.generation and self.is_here(job):
                    self._abort(job, info)

    @precondition(lambda self: self.jobs)
    @rule(requeues=st.booleans(), began=SELDOM, waits=SELDOM)
    def lose_the_engine(self, requeues: bool, began: bool, waits: bool) -> None:
        """A web process that lost it settles its own; what it does not speak for is lost.

        `waits`: what may run again finds no engine for the moment.
        """
        epoch = f"e{self.epoch}"
        self.epoch += 1
        Replica.objects.update(epoch=f"e{self.epoch}")
        there = {pk: job for pk, job in self.jobs.items() if job.run.epoch == epoch}
        again: list[str] = []
        if requeues:
            received = [
                Received(request_id=pk, generation=job.run.generation, begun=began and job.has_run)
                for pk, job in there.items()
            ]
            again = requests_requeue(replica="r0", epoch=epoch, received=received)
            there = {pk: job for pk, job in there.items() if pk not in again}
        requests_lose(replica="r0", epoch=epoch, received=None)
        self.lost |= there.keys()
        for request_id in again if not waits else ():
            self._place(request_id)
        self.held += again if waits else []

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
        """The task, delivered again at any time."""
        abort = self.aborts[pick % len(self.aborts)]
        if due:
            past = timezone.now() - timedelta(seconds=1)
            Abort.objects.filter(pk=abort.pk).update(deadline_at=past)
        abort_review(abort_id=abort.pk)

    @precondition(lambda self: self.jobs)
    @rule()
    def ask_about_silence(self) -> None:
        """Twice, with enough time between; the broker has delivered all by the second time."""
        for _ in range(2):
            self.later += timedelta(seconds=61)
            for question in requests_doubtful(now=timezone.now() + self.later):
                unknown = [key for key in question.why if not self._has(key)]
                requests_answered(
                    question=question, unknown=unknown, now=timezone.now() + self.later
                )
            batch, self.outbox = self.outbox, []
            self._deliver(batch)

    def _has(self, key: RequestKey) -> bool:
        """As the engine answers; what it does not know it will not run."""
        job = self.jobs[key.request_id]
        job.is_refused = job.is_refused or not job.is_sent
        return job.is_sent

    @precondition(lambda self: any(not job.is_sent for job in self.jobs.values()))
    @rule(pick=PICK)
    def submit_late(self, pick: int) -> None:
        unsent = [job for job in self.jobs.values() if not job.is_sent]
        job = unsent[pick % len(unsent)]
        job.is_sent = True
        if job.is_refused and self.is_here(job):
            self._abort(job, AbortInfo(cause=AbortCause.CLIENT_DISCONNECTED), tokens=0)

    def _pick(self, pick: int) -> Job:
        running = self._running()
        return running[pick % len(running)]

    def _abort(self, job: Job, info: AbortInfo, *, tokens: int = 2) -> None:
        while job.open:
            self._end(job, job.open[0], FinishReason.ABORT, tokens=tokens, abort=info)

    def _end(
        self,
        job: Job,
        index: int,
        reason: FinishReason,
        *,
        tokens: int,
        abort: AbortInfo | None = None,
    ) -> None:
        job.open.remove(index)
        job.ends[index] = reason, tokens
        triggers = {
            FinishReason.ABORT: Trigger.ABORT_CONFIRM,
            FinishReason.ERROR: Trigger.FAIL,
            FinishReason.STOP: Trigger.FINISH,
        }
        event = job.run.end_choice(
            index,
            tokens=tokens,
            reason=reason,
            trigger=None if job.open else triggers[reason],
            abort=abort,
            error_code="engine_error" if reason is FinishReason.ERROR else None,
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
    def it_is_true(self) -> None:
        record = truths.Record.now()
        running = {pk for pk, job in self.jobs.items() if self.is_here(job) and not job.is_refused}
        truths.transitions_are_dense_and_end_once(record)
        truths.counts_and_causes_are_true(record, self.jobs, self.lost)
        truths.every_step_of_an_engine_happened_there(record, self.jobs)
        truths.nothing_ends_before_its_engine_says_so(record, self.jobs, running)
        truths.receipts_are_truthful_and_final(record, self.outcomes)
        truths.changes_cover_every_transition_once(record)

    def teardown(self) -> None:
        """In the end all is told, nothing is live, and every receipt is closed."""
        try:
            if sys.exc_info()[0] is None:  # a step that failed has said enough
                self._come_to_rest()
        finally:
            transaction.set_rollback(True)
            self.block.__exit__(None, None, None)

    def _come_to_rest(self) -> None:
        for abort in self.aborts:
            abort_review(abort_id=abort.pk)
        for job in self._running():
            self._abort(job, AbortInfo(cause=AbortCause.SHUTDOWN))
        batch, self.outbox = self.outbox, []
        self._deliver(batch)
        abort_open(caller=self.owner.caller, everything=True)
        self.ask_about_silence()
        assert not [row.pk for row in InferenceRequest.objects.all() if row.is_live]
        assert not Abort.objects.exclude(state="done").exists()
        self.it_is_true()
