"""Waiting for a receipt: woken by a push, never lost without one, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer

from gateway import waiting
from gateway.waiting import settled

GROUP = "changes.abort.abt_1"


class DeadLayer:
    async def new_channel(self) -> str:
        raise ConnectionError("the broker is away")


def use(monkeypatch: pytest.MonkeyPatch, layer: Any) -> None:
    monkeypatch.setattr(waiting, "get_channel_layer", lambda: layer)


async def test_it_is_woken_by_a_push(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = InMemoryChannelLayer()
    use(monkeypatch, layer)
    monkeypatch.setattr(waiting, "FIRST_LOOK", 3600.0)
    done = asyncio.Event()
    looked = asyncio.Event()

    async def look() -> bool:
        looked.set()
        return done.is_set()

    waiter = asyncio.create_task(settled(GROUP, look, seconds=3600))
    await looked.wait()
    done.set()
    await layer.group_send(GROUP, {"type": "changed", "cursor": 1})
    assert await asyncio.wait_for(waiter, 10)
    assert layer.groups.get(GROUP, {}) == {}


async def test_it_leaves_no_subscription_when_the_client_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = InMemoryChannelLayer()
    use(monkeypatch, layer)
    looked = asyncio.Event()

    async def look() -> bool:
        looked.set()
        return False

    waiter = asyncio.create_task(settled(GROUP, look, seconds=3600))
    await looked.wait()
    waiter.cancel()
    await asyncio.wait({waiter})
    assert layer.groups.get(GROUP, {}) == {}
    assert layer.channels == {}


async def test_it_looks_by_itself_where_no_push_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DeadLayer())
    looks: list[None] = []

    async def look() -> bool:
        looks.append(None)
        return len(looks) > 2

    assert await settled(GROUP, look, seconds=60)


async def test_it_looks_once_when_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, InMemoryChannelLayer())

    async def never() -> bool:
        return False

    assert not await settled(GROUP, never, seconds=0)
