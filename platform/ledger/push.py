"""Telling watchers that something changed: "changed, cursor N" to channel groups, after commit.

A push may be lost; the rows are what a watcher is owed, and consumers read them again on a gap
and from time to time. So a failure here is logged by Django's `robust` hook and costs seconds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from ledger.models import Change

FEED_GROUP = "changes.feed"
CHANGED = "changed"
PROGRESS = "progress"
ENDED = "ended"
PUSH_SECONDS = 2.0


def group_of(kind: str, object_id: str) -> str:
    return f"changes.{kind}.{object_id}"


def push_after_commit(changes: Sequence[Change]) -> None:
    """One message per object that changed, and one to the feed, with the newest cursor of each."""
    cursors = {group_of(one.kind, one.object_id): one.pk for one in changes if _is_watched(one)}
    cursors[FEED_GROUP] = changes[-1].pk
    messages = {group: {"type": CHANGED, "cursor": cursor} for group, cursor in cursors.items()}
    transaction.on_commit(lambda: push(messages), robust=True)


def _is_watched(change: Change) -> bool:
    return change.kind in {Change.Kind.REQUEST, Change.Kind.ABORT}


def web_group_of(web: str) -> str:
    """The group of the web process of that name, which holds clients' connections."""
    return f"web.{web}"


def ends_after_commit(ended: Iterable[tuple[str, str]]) -> None:
    """What ended without its engine's word, as (web process, request id): their clients wait."""
    ids: dict[str, list[str]] = defaultdict(list)
    for web, request_id in ended:
        if web:
            ids[web_group_of(web)].append(request_id)
    messages = {group: {"type": ENDED, "request_ids": found} for group, found in ids.items()}
    if messages:
        transaction.on_commit(lambda: push(messages), robust=True)


def progress_after_commit(counts: Mapping[str, int]) -> None:
    """Tokens so far per request: lossy, the latest wins, no cursor."""
    messages = {
        group_of(Change.Kind.REQUEST, request_id): {
            "type": PROGRESS,
            "request_id": request_id,
            "output_token_count": count,
        }
        for request_id, count in counts.items()
    }
    transaction.on_commit(lambda: push(messages), robust=True)


def push(messages: Mapping[str, Mapping[str, Any]]) -> None:
    """Send one message to each group. Raises what the channel layer raises, or `TimeoutError`."""
    if messages:
        async_to_sync(_send)(messages.items())


async def _send(messages: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    layer = get_channel_layer()
    # A broker that hangs must not hold whoever has just committed.
    async with asyncio.timeout(PUSH_SECONDS):
        for group, message in messages:
            await layer.group_send(group, dict(message))
