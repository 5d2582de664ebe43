"""Tasks that outlive the request which started them: referenced, reported, without its context.

A task that inherits a request's context would keep that request's thread-sensitive executor.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

_running: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Start `work` on this loop and keep it until it ends. A failure is logged as an error."""
    task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
    _running.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s failed", task.get_name(), exc_info=task.exception())
