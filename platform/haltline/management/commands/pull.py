"""`manage.py pull`: fetch a model's weights into the cache, checked by their digests."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference.weights import WeightsError, pull


class Command(BaseCommand):
    help = "Fetch a model's weights: a known name, a Hugging Face id, or a path to check."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", nargs="?", default=settings.HALTLINE_MODEL)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        settings.ENV.prepare_home()
        try:
            path = pull(options["model"], settings.ENV.home.models, progress=sys.stderr.isatty())
        except WeightsError as problem:
            raise CommandError(problem.message) from None
        self.stdout.write(f"{options['model']}: {path}")
