"""What a watcher of one request or one abort is shown: a snapshot, then each change after it.

Synchronous reads, for a database thread. The cursor of a snapshot is that of its row's last
change, read in the same statement, so that no change is shown twice and none is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Max, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from accounts.callers import Caller
from ledger.models import Abort, Change
from ledger.representations import choice_json, request_event_json, request_json, time_json
from ledger.selectors import (
    abort_get,
    abort_receipt,
    changes_after,
    choices_of,
    cursor_now,
    request_get,
    requests_of,
    transitions_of,
)

Json = dict[str, Any]
CHANGES_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`message` None: nothing new. `ended`: nothing will come after this."""

    cursor: int
    message: Json | None
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing to watch, as a caller may see it."""

    caller: Caller
    kind: Change.Kind
    object_id: str

    def snapshot(self) -> View:
        reader = _request_now if self.kind is Change.Kind.REQUEST else _abort_now
        newest = cursor_now()
        shown, own_cursor, ended = reader(self)
        cursor = max(newest, own_cursor)
        return View(cursor=cursor, message=_message("snapshot", cursor, **shown), ended=ended)

    def changes(self, after: int) -> View:
        """Those after a cursor, at most `CHANGES_AT_ONCE` of them."""
        found = changes_after(
            cursor=after, limit=CHANGES_AT_ONCE, kind=self.kind, object_id=self.object_id
        )
        reader = _request_now if self.kind is Change.Kind.REQUEST else _abort_now
        shown, own_cursor, ended = reader(self)
        if not found:
            return View(cursor=after, message=None, ended=ended and own_cursor <= after)
        cursor = found[-1].pk
        entries = [self._entry(change, shown) for change in found]
        message = _message("changes", cursor, changes=entries)
        return View(cursor=cursor, message=message, ended=ended and own_cursor <= cursor)

    def _entry(self, change: Change, shown: Json) -> Json:
        entry: Json = {"type": f"{self.kind.value}.changed", "cursor": str(change.pk), **shown}
        if self.kind is Change.Kind.REQUEST:
            entry["events"] = [
                event
                for event in shown["events"]
                if change.first_seq <= event["seq"] <= change.last_seq
            ]
        return entry


def request_subject(*, caller: Caller, any_id: str) -> Subject:
    """Raises `NotFoundError`, for a stranger's too."""
    row = request_get(caller=caller, any_id=any_id)
    return Subject(caller=caller, kind=Change.Kind.REQUEST, object_id=row.pk)


def abort_subject(*, caller: Caller, any_id: str) -> Subject:
    """Raises `NotFoundError`, for a stranger's too."""
    abort = abort_get(caller=caller, abort_id=any_id)
    return Subject(caller=caller, kind=Change.Kind.ABORT, object_id=abort.pk)


def _request_now(subject: Subject) -> tuple[Json, int, bool]:
    """The request as it is, the cursor of its last change, whether it has ended."""
    rows = requests_of(subject.caller).filter(pk=subject.object_id)
    row = _with_cursor(rows, Change.Kind.REQUEST).get()
    events = transitions_of(request_id=row.pk).filter(seq__lte=row.transition_seq)
    request = {
        **request_json(row),
        "choices": [choice_json(one) for one in choices_of(request_id=row.pk)],
    }
    shown = {"request": request, "events": [request_event_json(one) for one in events]}
    return shown, row.cursor, not row.is_live


def _abort_now(subject: Subject) -> tuple[Json, int, bool]:
    row = _with_cursor(Abort.objects.filter(pk=subject.object_id), Change.Kind.ABORT).get()
    shown = {"abort": abort_receipt(abort=row)}
    return shown, row.cursor, row.state == Abort.Status.DONE


def _with_cursor(rows: QuerySet[Any], kind: Change.Kind) -> QuerySet[Any]:
    own = Change.objects.filter(kind=kind, object_id=OuterRef("pk")).order_by().values("object_id")
    last = Subquery(own.annotate(last=Max("pk")).values("last"))
    found: QuerySet[Any] = rows.annotate(cursor=Coalesce(last, 0))
    return found


def _message(kind: str, cursor: int, **parts: Any) -> Json:
    return {"type": kind, "cursor": str(cursor), "at": time_json(timezone.now()), **parts}


def cursor_parse(text: str) -> int | None:
    """A cursor that a watcher sent; None for one that is none, or that we have not reached."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    cursor = int(text)
    return cursor if cursor <= cursor_now() else None
