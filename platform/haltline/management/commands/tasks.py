"""`manage.py tasks`: a Celery worker for one queue, with threads.

Threads, because tasks wait for sockets and the database, never compute. Gossip and mingle are
off: no worker here needs to know the others, and each costs a second at the start.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from celery.exceptions import SecurityWarning
from django.core.management.base import BaseCommand, CommandParser

from haltline.celery import app
from haltline.services_table import QUEUES, node_name

_NOISE = ("celery.worker.strategy", "celery.app.trace")


class Command(BaseCommand):
    help = "Carry out what the web processes ask for: aborts, events, sweeps; background work."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", choices=QUEUES, default=QUEUES[0])
        parser.add_argument("--concurrency", type=int, default=4)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        for noisy in _NOISE:  # two lines per task would bury the rest
            logging.getLogger(noisy).setLevel(logging.WARNING)
        # It warns of running as root because of pickled messages; ours are JSON.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        # On SIGTERM it writes a farewell there first; with nobody to read it, it would never end.
        sys.__stdout__ = None  # type: ignore[misc]
        queue = options["queue"]
        worker = ["--pool=threads", f"--concurrency={options['concurrency']}", "--loglevel=INFO"]
        quick = ["--without-gossip", "--without-mingle"]
        name = [f"--queues={queue}", f"--hostname={node_name(queue)}"]
        app.worker_main(["--quiet", "worker", *worker, *quick, *name])
