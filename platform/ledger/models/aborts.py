"""Aborts and what became of each of their targets: the rows of a receipt."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.models import Owner
from ledger.models.requests import InferenceRequest


class Abort(models.Model):
    """An intent to stop requests, and its receipt. `owner` None: staff without an owner."""

    class Status(models.TextChoices):
        ACCEPTED = "accepted"
        IN_PROGRESS = "in_progress"
        DONE = "done"

    id = models.CharField(primary_key=True, max_length=40, editable=False)
    owner = models.ForeignKey(Owner, null=True, blank=True, on_delete=models.PROTECT)
    requested_by = models.CharField(max_length=200)
    cause = models.CharField(max_length=32)
    selector = models.JSONField()
    reason = models.TextField(blank=True, default="")
    state = models.CharField(max_length=16, choices=Status, default=Status.ACCEPTED)
    created_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField()
    idempotency_key = models.CharField(max_length=255, blank=True, default="")
    body_digest = models.CharField(max_length=64, blank=True, default="")
    next_look = models.DateTimeField(null=True, blank=True)

    # Of a dry run, which is never saved: the targets (the first ones), and the whole counts.
    preview: list[AbortTarget] | None = None
    preview_counts: dict[str, int] = {}

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="abort_newest"),
            models.Index(fields=["state", "next_look"], name="abort_next_look"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["requested_by", "owner", "idempotency_key"],
                name="abort_idempotency_key",
                condition=~Q(idempotency_key=""),
            ),
            # NULLs are distinct in a unique index: those without an owner need one of their own.
            models.UniqueConstraint(
                fields=["requested_by", "idempotency_key"],
                name="abort_idempotency_key_unowned",
                condition=~Q(idempotency_key="") & Q(owner__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return self.id


class AbortTarget(models.Model):
    """What became of one id of an abort. `outcome` is written once and never changes.

    `generation` is the one that the request had when it was named. If it is requeued after that,
    the next one is meant too: it is the request that was named.
    """

    class Outcome(models.TextChoices):
        PENDING = "pending"
        ABORTED = "aborted"
        ALREADY_FINISHED = "already_finished"
        NOT_FOUND = "not_found"
        ENGINE_LOST = "engine_lost"
        UNCONFIRMED = "unconfirmed"

    # Each composite index below begins with a foreign key, so these need none of their own.
    abort = models.ForeignKey(
        Abort, on_delete=models.CASCADE, related_name="targets", db_index=False
    )
    position = models.PositiveIntegerField()
    requested_id = models.CharField(max_length=200)
    request = models.ForeignKey(
        InferenceRequest,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    generation = models.PositiveIntegerField(default=0)
    outcome = models.CharField(max_length=20, choices=Outcome, default=Outcome.PENDING)
    detail = models.CharField(max_length=64, blank=True, default="")
    state_before = models.CharField(max_length=16, blank=True, default="")
    output_token_count = models.PositiveIntegerField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["abort", "position"]
        constraints = [
            models.UniqueConstraint(fields=["abort", "position"], name="target_position"),
        ]
        indexes = [
            models.Index(fields=["request", "outcome"], name="target_of_request"),
            models.Index(fields=["abort", "outcome"], name="target_outcome"),
        ]

    def __str__(self) -> str:
        return f"{self.abort_id}[{self.position}] {self.outcome}"
