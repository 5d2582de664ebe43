"""Changes: what watchers read, written last in a transaction, pushed after it.

On PostgreSQL one advisory lock makes ids visible in their order; on SQLite there is one writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import connection

from ledger.models import Change
from ledger.push import push_after_commit

# Any number, as long as it is the same in every process and nobody else's.
_LOCK = 4_851_700_266
AT_ONCE = 500


def changes_announce(
    *,
    requests: Mapping[str, tuple[int, int]] | None = None,
    aborts: Iterable[str] = (),
    replicas: Iterable[str] = (),
    now: datetime,
) -> None:
    """Must be the last write of its transaction. `requests`: first and last transition number."""
    changes = [
        Change(kind=Change.Kind.REQUEST, object_id=pk, first_seq=first, last_seq=last, at=now)
        for pk, (first, last) in (requests or {}).items()
    ]
    changes += [Change(kind=Change.Kind.ABORT, object_id=pk, at=now) for pk in sorted(aborts)]
    changes += [Change(kind=Change.Kind.REPLICA, object_id=pk, at=now) for pk in sorted(replicas)]
    if not changes:
        return
    _take_turn()
    push_after_commit(Change.objects.bulk_create(changes, batch_size=AT_ONCE))


def _take_turn() -> None:
    """Held until commit: whoever inserts next has the higher ids and is visible later."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
