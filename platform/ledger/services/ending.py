"""What the end of a request means: for its choices, its causes, and the aborts that meant it.

Called by `ledger.services.book` alone, inside its transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Exists, OuterRef

from inference.errors import EngineLostError
from inference.events import ChoiceEnd
from inference.generation import FinishReason
from inference.lifecycle import State
from ledger.models import LIVE_STATES, Abort, AbortTarget, Choice, InferenceRequest
from ledger.storable import json_storable, text_storable

AT_ONCE = 500
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
    """Fill in the end, in memory."""
    choice.finish_reason = end.finish_reason.value
    choice.output_token_count = count
    choice.text = text_storable(end.text)
    choice.token_ids = end.token_ids
    choice.logprobs = json_storable(msgspec.to_builtins(end.logprobs))
    choice.stop_reason = json_storable(end.stop_reason)
    choice.error_code = end.error_code or ""
    choice.error_message = text_storable(end.error_message or "")
    choice.finished_at = at
    if end.abort is not None:
        choice.cause = end.abort.cause.value
        choice.reason = text_storable(end.abort.reason or "")
        choice.abort_id = end.abort.id or ""


def choices_update(closed: Sequence[Choice]) -> None:
    """Write ends, each only over a live choice. Those without content are written as sets."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for choice in closed:
        fields = {name: getattr(choice, name) for name in _CHOICE_FIELDS}
        if choice.token_ids or choice.text:
            Choice.objects.filter(pk=choice.pk, finish_reason="").update(**fields)
        else:
            plain = {**fields, "token_ids": (), "logprobs": None}
            alike[tuple(plain.items())].append(choice.pk)
    for values, pks in alike.items():
        fields = {**dict(values), "token_ids": []}
        for start in range(0, len(pks), AT_ONCE):
            some = Choice.objects.filter(pk__in=pks[start : start + AT_ONCE], finish_reason="")
            some.update(**fields)


def ending_fields(row: InferenceRequest, choices: Sequence[Choice], state: State) -> dict[str, Any]:
    """Who and why, as the record keeps it: of the first aborted choice, or of the first failed."""
    if state is not State.ABORTED:
        failed = next((one for one in choices if one.error_code), None)
        return {
            "cause": "",
            "reason": "",
            "aborted_by": "",
            "abort_id": "",
            "error_code": row.error_code or (failed.error_code if failed else ""),
            "error_message": row.error_message or (failed.error_message if failed else ""),
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
    waiting = _targets_waiting(sorted(rows))
    alike: dict[Any, list[int]] = defaultdict(list)
    for target in waiting:
        row = rows[target.request_id or ""]
        if target.generation == row.generation:
            alike[_outcome(target, row, choices[row.pk])].append(target.pk)
    for (outcome, count, released_at), pks in alike.items():
        for start in range(0, len(pks), AT_ONCE):
            some = AbortTarget.objects.filter(pk__in=pks[start : start + AT_ONCE])
            some.filter(outcome=Outcome.UNCONFIRMED, confirmed_at=None).update(confirmed_at=now)
            some.filter(outcome=Outcome.PENDING).update(
                outcome=outcome, output_token_count=count, released_at=released_at
            )
    return {target.abort_id for target in waiting}


def _targets_waiting(request_ids: list[str]) -> list[AbortTarget]:
    found: list[AbortTarget] = []
    for start in range(0, len(request_ids), AT_ONCE):
        some = request_ids[start : start + AT_ONCE]
        open_ends = (Outcome.PENDING, Outcome.UNCONFIRMED)
        found += AbortTarget.objects.filter(request_id__in=some, outcome__in=open_ends)
    return found


def _outcome(
    target: AbortTarget, row: InferenceRequest, choices: Iterable[Choice]
) -> tuple[str, int, datetime | None]:
    """Outcome, tokens and time of release of a target whose request has ended.

    `aborted` if at least one choice was; `already_finished` only if none was.
    """
    if any(one.finish_reason == FinishReason.ABORT for one in choices):
        return Outcome.ABORTED.value, row.output_token_count, row.finished_at
    was_live = target.state_before in LIVE_STATES
    if was_live and row.error_code == EngineLostError.code:
        return Outcome.ENGINE_LOST.value, row.output_token_count, None
    return Outcome.ALREADY_FINISHED.value, row.output_token_count, None


def aborts_close(abort_ids: Iterable[str], *, now: datetime) -> None:
    """Close those that have no pending target left.

    Locks them first, in order: of two transactions that settle the last two targets, the later
    one must see the other's.
    """
    wanted = sorted(set(abort_ids))
    if not wanted:
        return
    locked = Abort.objects.select_for_update().filter(pk__in=wanted).order_by("pk")
    still_open = [one.pk for one in locked if one.state != Abort.Status.DONE]
    pending = AbortTarget.objects.filter(abort=OuterRef("pk"), outcome=Outcome.PENDING)
    Abort.objects.filter(~Exists(pending), pk__in=still_open).update(
        state=Abort.Status.DONE, done_at=now, next_look=None
    )
