"""Which Celery workers answer now, asked over a connection made for the one question.

Celery's own control interface takes its connections from a pool, where one that a restart of the
broker has broken waits for whoever asks next; and it tries for ever. It knows nothing of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection
from kombu.pidbox import Mailbox

# A broker that takes connections and says nothing must not hold whoever asks.
_SOCKET_OPTIONS = {"socket_timeout": 2.0, "socket_connect_timeout": 1.0}

# Where Celery's workers listen. One for all: its reply queue is named after the asking thread.
_mailbox = Mailbox("celery", type="fanout", accept=["json"], serializer="json")


class _SingleTry(Connection):
    """What fails is raised: Kombu's publishing would try again without end."""

    def ensure(  # type: ignore[override]  # how often and how long does not matter here
        self,
        obj: Any,  # noqa: ARG002 (Kombu's signature)
        fun: Callable[..., Any],
        **policy: Any,  # noqa: ARG002
    ) -> Callable[..., Any]:
        return fun


class _Found(Exception):  # noqa: N818 - no error: it ends the waiting for more answers
    """The answer that was looked for has come."""


def worker_answers(broker_url: str, node: str, *, within: float) -> bool:
    """Whether the worker of that node name answers within so many seconds.

    Raises Kombu's `OperationalError`, redis-py's `RedisError` or `OSError`, for the broker.
    """
    with _asking(broker_url) as (mailbox, channel):
        return bool(mailbox.call([node], "ping", timeout=within, channel=channel))


def queue_has_worker(broker_url: str, queue: str, *, within: float) -> bool:
    """Whether a worker that consumes the queue answers. Raises what `worker_answers` does."""

    def look(reply: dict[str, Any]) -> None:
        if any(consumed["name"] == queue for node in reply.values() for consumed in node):
            raise _Found

    with _asking(broker_url) as (mailbox, channel):
        try:
            mailbox.multi_call("active_queues", timeout=within, callback=look, channel=channel)
        except _Found:
            return True
    return False


@contextmanager
def _asking(broker_url: str) -> Iterator[tuple[Any, Any]]:
    connection = _SingleTry(broker_url, transport_options=_SOCKET_OPTIONS)
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        yield _mailbox(connection), connection.channel()
    finally:
        connection.collect()
