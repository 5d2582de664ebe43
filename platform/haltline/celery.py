"""The Celery application: durable intents and their follow-up, never tokens."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "haltline.settings")

app = Celery("haltline")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Shared tasks look for the app in their own thread, and web and worker have many.
app.set_default()
app.autodiscover_tasks()
