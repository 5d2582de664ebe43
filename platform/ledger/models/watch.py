"""Replicas as they are known here, and the changes that watchers follow."""

from __future__ import annotations

from django.db import models


class Replica(models.Model):
    """An engine as its heartbeats tell it. `load` is the newest `Status`, as JSON."""

    class State(models.TextChoices):
        RUNNING = "running"
        LOST = "lost"

    id = models.CharField(primary_key=True, max_length=128)
    epoch = models.CharField(max_length=128)
    state = models.CharField(max_length=16, choices=State, default=State.RUNNING)
    model = models.CharField(max_length=200)
    bus_url = models.CharField(max_length=500)
    last_beat_at = models.DateTimeField()
    load = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        permissions = [("control_replica", "Can pause, resume and sleep replicas")]

    def __str__(self) -> str:
        return self.id


class Change(models.Model):
    """That something became visible: `id` is the cursor of every watcher.

    For a request, `first_seq` and `last_seq` are the transitions that came with it.
    """

    class Kind(models.TextChoices):
        REQUEST = "request"
        ABORT = "abort"
        REPLICA = "replica"

    kind = models.CharField(max_length=16, choices=Kind)
    object_id = models.CharField(max_length=128)
    first_seq = models.PositiveIntegerField(default=0)
    last_seq = models.PositiveIntegerField(default=0)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["kind", "object_id", "id"], name="change_of_object")]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind} {self.object_id}"
