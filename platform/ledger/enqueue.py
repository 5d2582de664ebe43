"""Handing an intent to Celery once it is committed.

The row is the queue of record: if the broker is away, the sweeper starts what was left behind.
"""

from __future__ import annotations

from django.db import transaction


def abort_carry_out_after_commit(abort_id: str) -> None:
    """Without waiting for a broker that is down: Django logs the failure, the sweeper repairs."""
    transaction.on_commit(lambda: abort_carry_out_soon(abort_id), robust=True)


def abort_carry_out_soon(abort_id: str, *, attempt: int = 0, after: float = 0.0) -> None:
    """`after` seconds from now. Raises kombu's `OperationalError` if the broker is away."""
    from ledger.tasks import abort_carry_out  # the tasks stand above the services

    abort_carry_out.apply_async(
        args=(abort_id,), kwargs={"attempt": attempt}, countdown=after, retry=False
    )
