"""Celery tasks of the inference API: ids in, one call each. None of them waits."""

from __future__ import annotations

from celery import shared_task

from gateway.dispatch import dispatch_soon, request_dispatch, requests_overdue

_FIRST_LOOK = 0.25
_LONGEST_PAUSE = 2.0
# After so many looks the sweep goes on with it.
_LAST_LOOK = 8


@shared_task
def response_submit(request_id: str, attempt: int = 0) -> None:
    """Hand a background request to an engine; while none can take it, look again."""
    if request_dispatch(request_id=request_id) or attempt >= _LAST_LOOK:
        return
    pause = min(_FIRST_LOOK * 2**attempt, _LONGEST_PAUSE)
    dispatch_soon(request_id, attempt=attempt + 1, after=pause)


@shared_task
def responses_sweep() -> None:
    """Start those again whose task was lost."""
    for request_id in requests_overdue():
        dispatch_soon(request_id, attempt=_LAST_LOOK)
