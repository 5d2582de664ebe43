"""The Django project: the composition root. Nobody imports it; it imports everybody."""

from haltline.celery import app as celery_app

__all__ = ("celery_app",)
