"""`manage.py web`: one web process, serving until SIGTERM and then draining."""

from __future__ import annotations

import gc
from typing import Any

# Before anything of Twisted: it chooses the event loop.
from daphne.server import Server  # noqa: F401
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import get_resolver

from gateway.relay import Relay, relay_get
from haltline.server import AppServer, Drain, endpoint
from inference.generation import AbortCause

# Of the grace time: for clients to be served to their end, then for aborted ones to hear of it.
PATIENCE, RESERVE = 0.6, 0.3


class Command(BaseCommand):
    help = "Serve HTTP and websockets. Stops on SIGTERM, after the requests that run have ended."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--bind", default=settings.ENV.bind)
        parser.add_argument("--port", type=int, default=settings.ENV.port)
        parser.add_argument("--fd", type=int, help="a listening socket to take over instead")

    def handle(self, *_args: Any, **options: Any) -> None:
        from haltline.asgi import application

        server = AppServer(
            application,
            start=relay_get().start,
            drain=_drain(relay_get(), grace=settings.ENV.grace),
            send_timeout=settings.ENV.send_timeout,
            eager=settings.ENV.eager_send,
            endpoints=[endpoint(bind=options["bind"], port=options["port"], fd=options["fd"])],
            server_name="haltline",
        )
        _settle_memory()
        server.run()
        if server.failure is not None:
            raise CommandError(f"port {options['port']}: {server.failure}")


def _drain(relay: Relay, *, grace: float) -> Drain:
    return Drain(
        begin=relay.drain,
        hurry=lambda: relay.abort_all(AbortCause.SHUTDOWN),
        finish=relay.stop,
        patience=grace * PATIENCE,
        reserve=grace * RESERVE,
    )


def _settle_memory() -> None:
    """Load what the first request would, then keep the collector off all of it.

    A full collection of that would stall every stream for a tenth of a second. What a connection
    leaves behind is in cycles: without a full collection after some hundreds, it piles up.
    """
    get_resolver().url_patterns  # noqa: B018 - imports every view
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 2)
