"""What the end of a request means: for its choices, its causes, and the aborts that meant it.

Called by `ledger.services.book` alone, inside its transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Exists, OuterRef, Subquery

from inference.errors import EngineError, EngineLostError, default_message
from inference.events import ChoiceEnd
from inference.generation import FinishReason
from inference.lifecycle import State
from ledger.models import LIVE_STATES, Abort, AbortTarget, Choice, InferenceRequest, Tombstone
from ledger.retention import content_is_kept
from ledger.services.bulk import rows_update
from ledger.storable import json_storable, text_storable

AT_ONCE = 500
# What the columns hold; an engine's words are cut to that rather than lost with their batch.
LONGEST_CODE = 64
LONGEST_ID = 40
Outcome = AbortTarget.Outcome

_CHOICE_FIELDS = (
    "finish_reason",
    "output_token_count",
    "text",
    "token_ids",
    "logprobs",
    "stop_reason",
    "cause",
    "reason",
    "abort_id",
    "error_code",
    "error_message",
    "finished_at",
)


def choice_close(choice: Choice, end: ChoiceEnd, *, count: int, at: datetime) -> None:
    """Fill in the end, in memory. What was generated only where content is kept."""
    choice.finish_reason = end.finish_reason.value
    choice.output_token_count = count
    if content_is_kept():
        choice.text = text_storable(end.text)
        choice.token_ids = end.token_ids
        choice.logprobs = json_storable(msgspec.to_builtins(end.logprobs))
    choice.stop_reason = json_storable(end.stop_reason)
    choice.error_code = text_storable(end.error_code or "")[:LONGEST_CODE]
    choice.error_message = text_storable(end.error_message or "")
    choice.finished_at = at
    if end.abort is not None:
        choice.cause = end.abort.cause.value
        choice.reason = text_storable(end.abort.reason or "")
        choice.abort_id = text_storable(end.abort.id or "")[:LONGEST_ID]


def prompts_forget(request_ids: Sequence[str]) -> None:
    """Of requests that have ended, where content is not kept."""
    if not content_is_kept():
        for start in range(0, len(request_ids), AT_ONCE):
            some = request_ids[start : start + AT_ONCE]
            InferenceRequest.objects.filter(pk__in=some).exclude(prompt=[]).update(prompt=[])


def choices_update(closed: Sequence[Choice]) -> None:
    """Write ends, each over a live choice."""
    updates = [
        (
            {"id": choice.pk, "finish_reason": ""},
            {name: getattr(choice, name) for name in _CHOICE_FIELDS},
        )
        for choice in closed
    ]
    rows_update(Choice, updates, what="choices")


def ending_fields(row: InferenceRequest, choices: Sequence[Choice], state: State) -> dict[str, Any]:
    """Who and why, as the record keeps it: of the first aborted choice, or of the first failed."""
    if state is not State.ABORTED:
        code, message = _error_of(row, choices, state)
        return {
            "cause": "",
            "reason": "",
            "aborted_by": "",
            "abort_id": "",
            "error_code": code,
            "error_message": message,
        }
    blamed = next((one for one in choices if one.cause), None)
    if blamed is None or blamed.abort_id == row.abort_id != "":
        return {}
    return {
        "cause": blamed.cause,
        "reason": blamed.reason,
        "abort_id": blamed.abort_id,
        "aborted_by": _who_asked(blamed.abort_id),
    }


def _error_of(row: InferenceRequest, choices: Sequence[Choice], state: State) -> tuple[str, str]:
    """Code and message: the request's, else its first failed choice's. No failure is without."""
    failed = next((one for one in choices if one.error_code), None)
    code = row.error_code or (failed.error_code if failed else "")
    message = row.error_message or (failed.error_message if failed else "")
    if not code and state is State.FAILED:
        return EngineError.code, message or default_message(EngineError)
    return code, message


def _who_asked(abort_id: str) -> str:
    if not abort_id:
        return ""
    found = Abort.objects.filter(pk=abort_id).values_list("requested_by", flat=True).first()
    return found or ""


def targets_settle(
    ended: Sequence[InferenceRequest],
    choices: Mapping[str, Sequence[Choice]],
    *,
    now: datetime,
) -> set[str]:
    """Write the outcome of every target that waited for these requests; the aborts concerned."""
    rows = {row.pk: row for row in ended}
    waiting = [one for one in _targets_waiting(sorted(rows)) if _is_meant(one, rows)]
    pending: dict[str, list[int]] = defaultdict(list)
    for target in waiting:
        if target.outcome == Outcome.PENDING:
            row = rows[target.request_id or ""]
            pending[_outcome(target, row, choices[row.pk])].append(target.pk)
    for outcome, pks in pending.items():
        for some in _chunks(pks):
            _targets_write(some, outcome=outcome)
    # Afterwards and of all: a deadline may have closed some of them just now.
    for some in _chunks([one.pk for one in waiting]):
        unconfirmed = AbortTarget.objects.filter(pk__in=some, outcome=Outcome.UNCONFIRMED)
        unconfirmed.filter(confirmed_at=None).update(confirmed_at=now)
    return {target.abort_id for target in waiting}


def _chunks(pks: list[int]) -> Iterable[list[int]]:
    return (pks[start : start + AT_ONCE] for start in range(0, len(pks), AT_ONCE))


def _is_meant(target: AbortTarget, rows: Mapping[str, InferenceRequest]) -> bool:
    """The run that has ended is the one that was to be stopped, or the request's next after it."""
    return target.generation <= rows[target.request_id or ""].generation


def _targets_write(pks: list[int], *, outcome: str) -> None:
    """Counts and times are those that the rows of the requests hold by now."""
    request = InferenceRequest.objects.filter(pk=OuterRef("request_id")).order_by()
    released_at = Subquery(request.values("finished_at")) if outcome == Outcome.ABORTED else None
    AbortTarget.objects.filter(pk__in=pks, outcome=Outcome.PENDING).update(
        outcome=outcome,
        output_token_count=Subquery(request.values("output_token_count")),
        released_at=released_at,
    )


def _targets_waiting(request_ids: list[str]) -> list[AbortTarget]:
    found: list[AbortTarget] = []
    for start in range(0, len(request_ids), AT_ONCE):
        some = request_ids[start : start + AT_ONCE]
        open_ends = (Outcome.PENDING, Outcome.UNCONFIRMED)
        waiting = AbortTarget.objects.filter(request_id__in=some, outcome__in=open_ends)
        found += waiting.order_by()
    return found


def _outcome(target: AbortTarget, row: InferenceRequest, choices: Iterable[Choice]) -> str:
    """Of a target whose request has ended.

    `aborted` if at least one choice was; `already_finished` only if none was.
    """
    if any(one.finish_reason == FinishReason.ABORT for one in choices):
        return Outcome.ABORTED.value
    was_live = target.state_before in LIVE_STATES
    if was_live and row.error_code == EngineLostError.code:
        return Outcome.ENGINE_LOST.value
    return Outcome.ALREADY_FINISHED.value


def aborts_close(abort_ids: Iterable[str], *, now: datetime) -> None:
    """Close those that have no pending target left.

    One with tombstones stays open until its task has looked for who slipped past them. Locks them
    first, in order: of two transactions that settle the last two targets, the later one must see
    the other's.
    """
    wanted = sorted(set(abort_ids))
    if not wanted:
        return
    locked = Abort.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    still_open = [one.pk for one in locked if one.state != Abort.Status.DONE]
    pending = AbortTarget.objects.filter(abort=OuterRef("pk"), outcome=Outcome.PENDING)
    stones = Tombstone.objects.filter(abort=OuterRef("pk"))
    settled = Abort.objects.filter(~Exists(pending), pk__in=still_open)
    settled.exclude(Exists(stones), state=Abort.Status.ACCEPTED).update(
        state=Abort.Status.DONE, done_at=now, next_look=None
    )
