"""`manage.py beat`: starts the periodic tasks; one per installation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from haltline.celery import app


class Command(BaseCommand):
    help = "Send the periodic tasks to the workers when they are due."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        app.start(["--quiet", "beat", "--loglevel=WARNING", "--pidfile="])
