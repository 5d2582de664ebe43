"""Warm threads for Django's synchronous code: a fixed few, each with its database connection.

Django would start a thread, and so open a connection, per request. Here a synchronous view borrows
one for as long as it runs. An async view may wait long, so it borrows none and does its database
work through `gateway.database`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext, iscoroutinefunction
from django.conf import settings
from django.urls import Resolver404, resolve

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

THREADS = 8


class Bridge:
    """Wraps the Django application. An async view never holds a thread."""

    def __init__(self, app: App, *, threads: int = THREADS) -> None:
        self._app = app
        self._free = deque(_one_thread(f"bridge-{number}") for number in range(threads))
        self._slots = asyncio.Semaphore(threads)
        # What Django itself does around each request takes microseconds: one for all will do.
        self._signals = _one_thread("signals")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_synchronous(scope["path"]):
            await self._run(self._signals, scope, receive, send)
            return
        async with self._slots:
            thread = self._free.pop()  # the one used last: few threads stay hot
            try:
                await self._run(thread, scope, receive, send)
            finally:
                self._free.append(thread)

    async def _run(
        self, thread: ThreadPoolExecutor, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async with ThreadSensitiveContext(executor=thread):
            await self._app(scope, receive, send)


def _is_synchronous(path: str) -> bool:
    try:
        return not iscoroutinefunction(resolve(path).func)
    except Resolver404:
        return False


def _one_thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


def static_files(app: App) -> App:
    """Serves what Django's finders find, straight from where it lies, without a thread or a copy.

    The first finder's file wins, as in `findstatic`.
    """
    from django.contrib.staticfiles.finders import get_finders
    from servestatic import ServeStaticASGI

    prefix = settings.STATIC_URL
    found: App = ServeStaticASGI(app)
    known: set[str] = set()
    for finder in get_finders():
        for path, storage in finder.list([]):
            name = f"/{prefix.lstrip('/')}{path}"
            if name not in known:
                known.add(name)
                found.add_file_to_dictionary(name, storage.path(path))  # type: ignore[attr-defined]
    return found
