"""`manage.py engine`: become an engine process, which knows no Django."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from haltline.services_table import engine_command, engine_environment


class Command(BaseCommand):
    help = "Run one engine: loads the model and serves it on its bus address."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--number", type=int, default=0, help="which of HALTLINE_ENGINES")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        env, number = settings.ENV, options["number"]
        if not 0 <= number < len(env.bus_urls):
            raise CommandError(
                f"there is no bus address for engine {number}: HALTLINE_BUS_URL and "
                f"HALTLINE_ENGINES give {len(env.bus_urls)}"
            )
        env.prepare_home()
        os.execve(sys.executable, engine_command(), engine_environment(env, number))  # noqa: S606
