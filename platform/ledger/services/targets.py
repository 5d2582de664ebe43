"""What one selector of an abort names, and the rows that fix it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from accounts.callers import Caller
from inference.errors import InvalidRequestError
from inference.lifecycle import Trigger
from ledger.models import LIVE_STATES, Abort, AbortTarget, InferenceRequest
from ledger.selectors import TARGETS_SHOWN, condition_of, owned_by, requests_resolve
from ledger.services.book import AT_ONCE, Book
from ledger.specs import RequestFilter, Resolved, Step
from ledger.storable import json_storable, text_storable

Outcome = AbortTarget.Outcome
MOST_IDS = 1000
_LONGEST_ID = 200

_FIX_THE_SET = """
INSERT INTO ledger_aborttarget
    (abort_id, position, requested_id, request_id, generation, outcome, detail, state_before)
SELECT %s, ROW_NUMBER() OVER (ORDER BY chosen.received_at, chosen.id) - 1,
       chosen.id, chosen.id, chosen.generation, 'pending', '', chosen.state
FROM ({chosen}) AS chosen
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One of `ids` and `chosen` is set: single ids, or a set of live requests.

    `tombstone`: seconds, for `ids`; `fence`: for all there is.
    """

    caller: Caller
    json: dict[str, Any]
    ids: list[str] | None = None
    chosen: QuerySet[InferenceRequest] | None = None
    tombstone: float = 0.0
    fence: bool = False


def selector_of(
    *,
    caller: Caller,
    ids: list[str] | None,
    everything: bool,
    filters: dict[str, Any] | None,
) -> Selector:
    """Raises `InvalidRequestError` unless exactly one selector is given, and names something."""
    given = [ids is not None, everything, filters is not None]
    if sum(given) != 1:
        raise InvalidRequestError("exactly one of req_ids, abort_all and filter is needed")
    if ids is not None:
        return Selector(caller=caller, ids=_checked(ids), json={"req_ids": json_storable(ids)})
    live = InferenceRequest.objects.filter(_reach(caller), state__in=LIVE_STATES)
    if filters is None:
        return Selector(caller=caller, chosen=live, json={"abort_all": True})
    chosen = live.filter(condition_of(_filter_of(filters)))
    return Selector(caller=caller, chosen=chosen, json={"filter": json_storable(filters)})


def _reach(caller: Caller) -> Q:
    return Q() if caller.may_abort_all else owned_by(caller)


def _checked(ids: list[str]) -> list[str]:
    """Each once, in the order given."""
    if not ids or len(ids) > MOST_IDS or not all(one.strip() for one in ids):
        raise InvalidRequestError(f"1 to {MOST_IDS} ids are needed, none blank", param="req_ids")
    if any(len(one) > _LONGEST_ID for one in ids):
        raise InvalidRequestError(f"an id has at most {_LONGEST_ID} characters", param="req_ids")
    return list(dict.fromkeys(ids))


def _filter_of(filters: dict[str, Any]) -> RequestFilter:
    known = {"model", "owner", "state", "older_than", "metadata"}
    if not filters or not filters.keys() <= known:
        raise InvalidRequestError("a filter needs at least one known field", param="filter")
    return RequestFilter(**filters)


def targets_insert(abort: Abort, selector: Selector, book: Book) -> int:
    """Write the targets, pending or not found. How many."""
    if selector.chosen is not None:
        return _insert_chosen(abort, selector.chosen)
    resolved = _resolved(selector)
    rows = book.lock(one.request_id for one in resolved if one.request_id)
    targets = [_target(abort, position, one, rows) for position, one in enumerate(resolved)]
    AbortTarget.objects.bulk_create(targets, batch_size=AT_ONCE)
    return len(targets)


def _insert_chosen(abort: Abort, chosen: QuerySet[InferenceRequest]) -> int:
    """The set as it is at this statement: one INSERT … SELECT, whatever its size."""
    wanted = chosen.order_by().values("id", "received_at", "generation", "state")
    sql, params = wanted.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_FIX_THE_SET.format(chosen=sql), [abort.pk, *params])
        return int(cursor.rowcount)


def _resolved(selector: Selector) -> list[Resolved]:
    caller = selector.caller
    return requests_resolve(
        caller=caller, requested_ids=selector.ids or (), everyone=caller.may_abort_all
    )


def _target(
    abort: Abort, position: int, resolved: Resolved, rows: dict[str, InferenceRequest]
) -> AbortTarget:
    row = rows.get(resolved.request_id or "")
    return AbortTarget(
        abort=abort,
        position=position,
        requested_id=text_storable(resolved.requested_id),
        request=row,
        generation=row.generation if row else 0,
        outcome=Outcome.PENDING if row else Outcome.NOT_FOUND,
        detail=resolved.detail,
        state_before=row.state if row else "",
    )


def abort_step(abort: Abort, trigger: Trigger) -> Step:
    """A step that an abort takes on one of its requests; it notes whose abort it was, and why."""
    return Step(
        trigger=trigger,
        actor=abort.requested_by,
        detail={"abort": abort.pk, "cause": abort.cause, "reason": abort.reason or None},
        fields={
            "cause": abort.cause,
            "reason": abort.reason,
            "abort_id": abort.pk,
            "aborted_by": abort.requested_by,
        },
    )


def targets_pending(
    abort_id: str, *, limit: int, after: int = -1, idle: bool = False
) -> list[AbortTarget]:
    """Pending targets after a position. `idle`: those that no engine has been asked about."""
    found = AbortTarget.objects.filter(
        abort_id=abort_id, outcome=Outcome.PENDING, position__gt=after
    )
    if idle:
        found = found.exclude(request__state="aborting")
    return list(found.order_by("position")[:limit])


def targets_preview(selector: Selector) -> tuple[list[AbortTarget], dict[str, int]]:
    """What an abort would mean now, without writing: the first targets, and the whole counts."""
    abort = Abort(id="")
    if selector.chosen is not None:
        total = selector.chosen.count()
        rows = list(selector.chosen.order_by("received_at", "pk")[:TARGETS_SHOWN])
        shown = [
            _target(abort, place, _itself(row), {row.pk: row}) for place, row in enumerate(rows)
        ]
        return shown, _counts({Outcome.PENDING: total})
    resolved = _resolved(selector)
    found = InferenceRequest.objects.in_bulk([one.request_id for one in resolved if one.request_id])
    shown = [_target(abort, place, one, found) for place, one in enumerate(resolved)]
    for target in shown:
        target.outcome = _foreseen(target)
    return shown, _counts(Counter(target.outcome for target in shown))


def _itself(row: InferenceRequest) -> Resolved:
    return Resolved(requested_id=row.pk, request_id=row.pk)


def _foreseen(target: AbortTarget) -> str:
    if not target.state_before or target.state_before in LIVE_STATES:
        return target.outcome
    is_aborted = target.state_before == "aborted"
    return Outcome.ABORTED.value if is_aborted else Outcome.ALREADY_FINISHED.value


def _counts(found: dict[str, int]) -> dict[str, int]:
    counts = {outcome: found.get(outcome, 0) for outcome in Outcome.values}
    return {"targets": sum(counts.values()), **counts}
