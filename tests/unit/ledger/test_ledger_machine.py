"""The ledger under everything at once, and the proof that its machine notices faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from inference.lifecycle import TERMINAL, TRANSITIONS, State, Trigger
from inference.wire import RequestKey
from ledger.models import Abort, AbortTarget, InferenceRequest
from ledger.services import aborts, book, doubts, ending, events, requests, requeue, targets
from tests.unit.ledger.machine import LedgerMachine


@pytest.mark.django_db
def test_it_keeps_the_record_true_whatever_comes_in_whatever_order(rounds: int) -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=20 * rounds,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )


# -- does the machine notice?


def double_terminal(patch: pytest.MonkeyPatch) -> None:
    """What has ended may end again."""
    again = {(end, trigger): end for end in TERMINAL for trigger in Trigger}
    patch.setattr(book, "TRANSITIONS", {**again, **TRANSITIONS})
    patch.setattr(InferenceRequest, "is_live", True)


def lost_token(patch: pytest.MonkeyPatch) -> None:
    """The last token of an answer is not counted."""
    close = ending.choice_close

    def short(choice: Any, end: Any, *, count: int, at: Any) -> None:
        close(choice, end, count=count - (count > 1), at=at)

    patch.setattr(book, "choice_close", short)


def skipped_number(patch: pytest.MonkeyPatch) -> None:
    """A preemption takes two numbers."""
    note = book.Book._note

    def skipping(self: Any, row: Any, trigger: Trigger, **rest: Any) -> None:
        row.transition_seq += trigger is Trigger.PREEMPT
        note(self, row, trigger, **rest)

    patch.setattr(book.Book, "_note", skipping)


def outcome_before_event(patch: pytest.MonkeyPatch) -> None:
    """An abort settles what an engine still holds."""
    patch.setattr(aborts, "UNDISPATCHED", frozenset(State))


def early_close(patch: pytest.MonkeyPatch) -> None:
    """A receipt closes with its first settled target."""

    def close(abort_ids: Any, *, now: Any) -> None:
        rows = Abort.objects.filter(pk__in=list(abort_ids), targets__outcome="aborted")
        rows.update(state="done", done_at=now)
        ending.aborts_close(abort_ids, now=now)

    patch.setattr(book, "aborts_close", close)


def rewritten_outcome(patch: pytest.MonkeyPatch) -> None:
    """A late confirmation overwrites `unconfirmed`."""
    settle = ending.targets_settle

    def overwriting(ended: Any, choices: Any, *, now: Any) -> Any:
        ids = [row.pk for row in ended]
        late = AbortTarget.objects.filter(request_id__in=ids, outcome="unconfirmed")
        late.update(outcome="pending")
        return settle(ended, choices, now=now)

    patch.setattr(book, "targets_settle", overwriting)


def any_generation(patch: pytest.MonkeyPatch) -> None:
    """What the lost engine tells of the first run counts for the second."""
    record = events._event

    def lenient(found: Any, row: Any, event: Any) -> str:
        if row is None:
            return record(found, row, event)
        key = RequestKey(row.pk, row.generation)
        return record(found, row, replace(event, key=key, epoch=row.epoch))

    patch.setattr(events, "_event", lenient)


def repeated_entries(patch: pytest.MonkeyPatch) -> None:
    """Entries that are recorded are taken again."""

    def all_of_it(found: Any, row: Any, event: Any) -> str:
        if row is None or not row.is_live or row.generation != event.key.generation:
            return "late"
        events._timeline(found, row, event, event.timeline)
        return "applied"

    patch.setattr(events, "_event", all_of_it)


def blame_without_abort(patch: pytest.MonkeyPatch) -> None:
    """A finished request keeps the cause of the abort that came too late."""
    fields = ending.ending_fields

    def kept(row: Any, choices: Any, state: State) -> dict[str, Any]:
        return fields(row, choices, state) if state is State.ABORTED else {}

    patch.setattr(book, "ending_fields", kept)


def unannounced_step(patch: pytest.MonkeyPatch) -> None:
    """Watchers are not told the first of several steps."""
    spans = book.Book._spans

    def shorter(self: Any) -> dict[str, tuple[int, int]]:
        return {pk: (min(one + 1, two), two) for pk, (one, two) in spans(self).items()}

    patch.setattr(book.Book, "_spans", shorter)


def open_tombstone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "tombstone_meet", lambda row: None)


def open_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "fence_pass", lambda: None)


def reach_of_a_stranger(patch: pytest.MonkeyPatch) -> None:
    resolve = targets.requests_resolve

    def everyone(**asked: Any) -> Any:
        return resolve(**{**asked, "everyone": True})

    patch.setattr(targets, "requests_resolve", everyone)


def endless_requeue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requeue, "FIRST_GENERATION", 9)


def same_generation(patch: pytest.MonkeyPatch) -> None:
    """The second run bears the key of the first."""
    step = requeue._requeue_step

    def unchanged(row: Any) -> Any:
        found = step(row)
        return dataclasses.replace(found, fields={**found.fields, "generation": row.generation})

    patch.setattr(requeue, "_requeue_step", unchanged)


def doubt_without_question(patch: pytest.MonkeyPatch) -> None:
    """What the engine has is taken for unknown."""
    unknown = doubts._rows

    def everything(found: Any, question: Any, keys: Any) -> Any:
        return unknown(found, question, list(question.why))

    patch.setattr(doubts, "_rows", everything)
    patch.setattr(doubts, "_note_known", lambda *_: None)


def half_an_abort(patch: pytest.MonkeyPatch) -> None:
    """An engine is lost after one choice was aborted: the request counts as failed."""
    end = book.Book._end

    def as_asked(self: Any, row: Any, step: Any, state: State, at: Any) -> State:
        end(self, row, step, state, at)
        return state

    patch.setattr(book.Book, "_end", as_asked)


FAULTS = [
    double_terminal,
    lost_token,
    skipped_number,
    outcome_before_event,
    early_close,
    rewritten_outcome,
    any_generation,
    repeated_entries,
    blame_without_abort,
    unannounced_step,
    open_tombstone,
    open_fence,
    reach_of_a_stranger,
    endless_requeue,
    same_generation,
    doubt_without_question,
    half_an_abort,
]


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("fault", FAULTS)
def test_it_notices_a_fault_within_a_bounded_run(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method: one deliberate fault at a time is put into the ledger, and the machine must fail.

    At most 1500 short lives of 25 steps each, without shrinking. Most faults are noticed within a
    hundred; hypothesis also draws from constants in whatever modules are loaded, so the lives are
    not quite the same in every run, and the bound is far from the usual. Each fault was chosen so
    that no constraint of the database stands before the machine's own checks.
    """
    fault(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(
            LedgerMachine,
            settings=settings(
                max_examples=1500,
                stateful_step_count=25,
                deadline=None,
                database=None,
                derandomize=True,
                report_multiple_bugs=False,
                phases=[Phase.generate],
            ),
        )
