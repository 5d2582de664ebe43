"""The only writer of a state: one transaction's changes to the record, checked and numbered.

A `Book` locks rows, takes steps on them in memory by the table of `inference.lifecycle`, and
writes all of it at the end: rows by compare-and-set, numbered transitions, choices, the outcome
of abort targets, and last the changes that watchers read. What a step means to its caller, and
who may take it, it does not know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from inference.events import ChoiceEnd
from inference.generation import FinishReason
from inference.lifecycle import LIVE, TERMINAL, TRANSITIONS, State, Trigger
from ledger.models import Choice, InferenceRequest, Transition
from ledger.push import ends_after_commit
from ledger.services.announce import changes_announce
from ledger.services.bulk import rows_insert, rows_update
from ledger.services.ending import (
    aborts_close,
    choice_close,
    choices_update,
    ending_fields,
    prompts_forget,
    targets_settle,
)
from ledger.specs import Step

AT_ONCE = 500
# Whose word reaches a waiting client by itself.
ENGINE_ACTOR = "engine:"

_STATE_OF_END = {
    FinishReason.STOP: State.FINISHED,
    FinishReason.LENGTH: State.FINISHED,
    FinishReason.ABORT: State.ABORTED,
    FinishReason.ERROR: State.FAILED,
    FinishReason.EXPIRED: State.EXPIRED,
}
_TRIGGER_OF_END = {
    State.FINISHED: Trigger.FINISH,
    State.ABORTED: Trigger.ABORT_CONFIRM,
    State.FAILED: Trigger.FAIL,
    State.EXPIRED: Trigger.EXPIRE,
}
_END_OF_STATE = {
    State.FINISHED: FinishReason.STOP,
    State.ABORTED: FinishReason.ABORT,
    State.FAILED: FinishReason.ERROR,
    State.REJECTED: FinishReason.ERROR,
    State.EXPIRED: FinishReason.EXPIRED,
}
_MILESTONES = {
    State.HELD: "held_at",
    State.QUEUED: "queued_at",
    State.RUNNING: "first_scheduled_at",
}


@contextmanager
def book_open() -> Iterator[Book]:
    """One transaction; what the book holds is written when the block ends without an error."""
    with transaction.atomic():
        book = Book()
        yield book
        book.write()


class Book:
    def __init__(self) -> None:
        self.now = timezone.now()
        self._rows: dict[str, InferenceRequest] = {}
        self._new: list[InferenceRequest] = []
        self._seq_before: dict[str, int] = {}
        self._fields: dict[str, dict[str, Any]] = defaultdict(dict)
        self._transitions: list[Transition] = []
        self._choices: dict[str, list[Choice]] = {}
        self._closed: list[Choice] = []
        self._ended: list[InferenceRequest] = []
        self._unannounced: list[tuple[str, str]] = []
        self._aborts: set[str] = set()

    def lock(
        self, request_ids: Iterable[str], condition: Q | None = None
    ) -> dict[str, InferenceRequest]:
        """The rows by id, held until the end of the transaction. In id order: no deadlock.

        With a `condition`, only those that meet it. Their keys stay free: see `no_key`, without
        which a commit that refers to a row could wait for it while it holds the cursor's lock.
        """
        wanted = sorted(set(request_ids) - self._rows.keys())
        rows = InferenceRequest.objects.select_for_update(no_key=True).defer("prompt", "params")
        rows = rows.filter(condition) if condition is not None else rows
        for start in range(0, len(wanted), AT_ONCE):
            for row in rows.filter(pk__in=wanted[start : start + AT_ONCE]).order_by("pk"):
                self._rows[row.pk] = row
                self._seq_before[row.pk] = row.transition_seq
        return self._rows

    def row(self, request_id: str) -> InferenceRequest:
        """A row that was locked before. Raises `KeyError` if it was not, or does not exist."""
        return self._rows[request_id]

    def add(self, row: InferenceRequest, *, actor: str) -> None:
        """A request that was just received, and its choices."""
        row.state = State.RECEIVED.value
        row.changed_at = row.received_at
        self._rows[row.pk] = row
        self._new.append(row)
        self._choices[row.pk] = [
            Choice(request=row, index=index) for index in range(row.choice_count)
        ]
        self._note(row, Trigger.RECEIVE, to=State.RECEIVED, actor=actor, at=row.received_at)

    def choices(self, row: InferenceRequest) -> list[Choice]:
        if row.pk not in self._choices:
            self.load_choices([row])
        return self._choices[row.pk]

    def load_choices(self, rows: Iterable[InferenceRequest]) -> None:
        """Read the choices of many rows at once."""
        wanted = sorted({row.pk for row in rows} - self._choices.keys())
        self._choices |= {pk: [] for pk in wanted}
        for start in range(0, len(wanted), AT_ONCE):
            found = Choice.objects.filter(request_id__in=wanted[start : start + AT_ONCE])
            for choice in found.order_by("request_id", "index"):
                self._choices[choice.request_id].append(choice)

    def set(self, row: InferenceRequest, **fields: Any) -> None:
        """Columns other than the state."""
        for name, value in fields.items():
            if getattr(row, name) != value:
                setattr(row, name, value)
                self._fields[row.pk][name] = value

    def involve(self, abort_ids: Iterable[str]) -> None:
        """These aborts changed in this transaction: announce them, close those that are settled."""
        self._aborts.update(abort_ids)

    def settle(self, row: InferenceRequest) -> None:
        """A request that had ended before: give its outcome to the targets that wait for it."""
        self.choices(row)
        self._ended.append(row)

    def advance(self, row: InferenceRequest, step: Step) -> bool:
        """Take a step if it applies in the row's state; False, and nothing changed, if not."""
        target = TRANSITIONS.get((State(row.state), step.trigger))
        if target is None:
            return False
        at, trigger = self._moment(row, step.at), step.trigger
        self.set(row, **step.fields)
        if target in TERMINAL:
            target = self._end(row, step, target, at)
            trigger = step.trigger if target != State.ABORTED else Trigger.ABORT_CONFIRM
        self._note(row, trigger, to=target, actor=step.actor, at=at, detail=step.detail)
        milestone = _MILESTONES.get(target)
        if milestone is not None and getattr(row, milestone) is None:
            self.set(row, **{milestone: at})
        self.set(row, state=target.value, changed_at=at)
        return True

    def end_choice(
        self, row: InferenceRequest, end: ChoiceEnd, *, actor: str, at: datetime | None
    ) -> bool:
        """Close one choice; False if it had ended before, or there is none of that index."""
        found = [one for one in self.choices(row) if one.index == end.index]
        if State(row.state) not in LIVE or not found or found[0].finish_reason:
            return False
        moment = self._moment(row, at)
        choice_close(found[0], end, count=len(end.token_ids), at=moment)
        self._close(row, found[0], actor=actor)
        return True

    def _close(self, row: InferenceRequest, choice: Choice, *, actor: str) -> None:
        state = _STATE_OF_END[FinishReason(choice.finish_reason)]
        self._closed.append(choice)
        self._note(
            row,
            _TRIGGER_OF_END[state],
            to=state,
            actor=actor,
            at=choice.finished_at or self.now,
            choice=choice,
        )

    def _end(self, row: InferenceRequest, step: Step, state: State, at: datetime) -> State:
        """The one finalizer of every cause: what is open closes, counts and causes are fixed.

        The state that the request ends in: aborted if one of its choices was, whatever ended the
        rest.
        """
        choices = self.choices(row)
        still_open = [one for one in choices if not one.finish_reason]
        for choice in still_open:
            end = ChoiceEnd(index=choice.index, finish_reason=_END_OF_STATE[state])
            choice_close(choice, end, count=_unreported(row, choices), at=at)
            self._close(row, choice, actor=step.actor)
        told = sum(one.output_token_count for one in choices)
        count = max(told, row.output_token_count) if still_open else told
        self.set(row, output_token_count=count, finished_at=at)
        if any(one.finish_reason == FinishReason.ABORT for one in choices):
            state = State.ABORTED
        self.set(row, **ending_fields(row, choices, state))
        for choice in still_open:
            choice.error_code, choice.error_message = row.error_code, row.error_message
            if choice.finish_reason == FinishReason.ABORT:
                choice.cause, choice.reason = row.cause, row.reason
                choice.abort_id = row.abort_id
        self._ended.append(row)
        if not step.actor.startswith(ENGINE_ACTOR):
            self._unannounced.append((row.web, row.pk))
        return state

    def _moment(self, row: InferenceRequest, at: datetime | None) -> datetime:
        """When, but never before what the record already holds: clocks of processes differ."""
        return max(at or self.now, row.changed_at)

    def _note(
        self,
        row: InferenceRequest,
        trigger: Trigger,
        *,
        to: State,
        actor: str,
        at: datetime,
        choice: Choice | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        row.transition_seq += 1
        is_first = trigger is Trigger.RECEIVE and row.transition_seq == 1
        self._transitions.append(
            Transition(
                request=row,
                seq=row.transition_seq,
                choice_index=choice.index if choice is not None else None,
                from_state="" if is_first else row.state,
                to_state=to.value,
                trigger=trigger.value,
                actor=actor,
                at=at,
                recorded_at=self.now,
                detail=dict(detail or {}),
            )
        )

    def write(self) -> None:
        """Everything, in one order for all transactions, the announcement last."""
        InferenceRequest.objects.bulk_create(self._new)
        self._write_rows()
        rows_insert(Transition, self._transitions)
        self._write_choices()
        aborts = self._aborts | targets_settle(self._ended, self._choices, now=self.now)
        aborts_close(aborts, now=self.now)
        ends_after_commit(self._unannounced)
        changes_announce(requests=self._spans(), aborts=aborts, now=self.now)

    def _write_rows(self) -> None:
        """The compare-and-set. The rows are locked: it fails only if somebody bypassed us.

        By number: each change of a state has one. By state as well, a planner with old
        statistics might look for the row among all of that state.
        """
        updates = []
        for pk, seq in self._seq_before.items():
            row, fields = self._rows[pk], self._fields.get(pk, {})
            if fields or row.transition_seq != seq:
                was = {"id": pk, "transition_seq": seq}
                updates.append((was, {**fields, "transition_seq": row.transition_seq}))
        rows_update(InferenceRequest, updates, what="requests")
        prompts_forget(sorted(row.pk for row in self._ended))

    def _write_choices(self) -> None:
        new = {row.pk for row in self._new}
        Choice.objects.bulk_create(
            [choice for row in self._new for choice in self._choices[row.pk]], batch_size=AT_ONCE
        )
        closed = [one for one in self._closed if one.request_id not in new]
        choices_update(closed)

    def _spans(self) -> dict[str, tuple[int, int]]:
        """First and last transition number per request that changed."""
        spans: dict[str, tuple[int, int]] = {}
        for one in self._transitions:
            first, _ = spans.get(one.request_id, (one.seq, 0))
            spans[one.request_id] = (first, one.seq)
        return spans


def _unreported(row: InferenceRequest, choices: list[Choice]) -> int:
    """The tokens of a choice whose end nobody told: known only where it is the only one."""
    return row.output_token_count if len(choices) == 1 else 0
