"""The operators' interfaces and console, as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class AdminapiConfig(AppConfig):
    name = "adminapi"
    verbose_name = "Operations"
    default_auto_field = "django.db.models.BigAutoField"
