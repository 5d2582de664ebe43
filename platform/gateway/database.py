"""The threads that speak to the database for async code: few, warm, each with its connection.

Async views hop here once per request, so that a waiting stream holds no thread. Knows nothing
of what it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

THREADS = 8

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Bounds the connections of this process, too: a thread keeps one (CONN_MAX_AGE).
DB_POOL = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="database")


async def in_database(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Run `function` in a database thread. A cancelled caller does not stop it: it commits."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(DB_POOL, lambda: _fresh(function, *args, **kwargs))


def _fresh(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()
