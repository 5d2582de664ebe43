"""Requests, their choices, and the numbered transitions of their lives."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.models import Owner
from inference.generation import FinishReason
from inference.lifecycle import LIVE, State, Trigger

LIVE_STATES = sorted(state.value for state in LIVE)
_STATES = [(state.value, state.value) for state in State]


class InferenceRequest(models.Model):
    """One request of a client: `choice_count` = prompts * n choices, which end one by one.

    `params`, `prompt` and `metadata` are as the client sent them. An empty `client_id`, `cause`,
    `error_code`, `reason`, `aborted_by` or `abort_id` means that there is none. `engine_seq` is
    the newest entry of the present engine's timeline that is recorded, `transition_seq` the
    ledger's newest. `asked_at`: when its engine was last asked whether it has it; `unknown_at`:
    since when the engine says that it does not know it. Counts are tokens, durations seconds.

    Foreign keys here and below have no index of their own: a composite one begins with each.
    """

    class Kind(models.TextChoices):
        CHAT = "chat"
        COMPLETION = "completion"
        RESPONSE = "response"

    id = models.CharField(primary_key=True, max_length=40, editable=False)
    owner = models.ForeignKey(
        Owner, on_delete=models.PROTECT, related_name="requests", db_index=False
    )
    submitted_by = models.CharField(max_length=200)
    client_id = models.CharField(max_length=128, blank=True, default="")
    kind = models.CharField(max_length=16, choices=Kind)
    model = models.CharField(max_length=200)
    params = models.JSONField(default=dict)
    prompt = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    stream = models.BooleanField(default=False)
    priority = models.IntegerField(default=0)
    n = models.PositiveIntegerField(default=1)
    choice_count = models.PositiveIntegerField(default=1)

    state = models.CharField(max_length=16, choices=_STATES)
    generation = models.PositiveIntegerField(default=1)
    replica = models.CharField(max_length=128, blank=True, default="")
    epoch = models.CharField(max_length=128, blank=True, default="")
    web = models.CharField(max_length=128, blank=True, default="")
    engine_seq = models.PositiveIntegerField(default=0)
    transition_seq = models.PositiveIntegerField(default=0)

    cause = models.CharField(max_length=32, blank=True, default="")
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    reason = models.TextField(blank=True, default="")
    aborted_by = models.CharField(max_length=200, blank=True, default="")
    abort_id = models.CharField(max_length=40, blank=True, default="")

    received_at = models.DateTimeField()
    held_at = models.DateTimeField(null=True, blank=True)
    queued_at = models.DateTimeField(null=True, blank=True)
    first_scheduled_at = models.DateTimeField(null=True, blank=True)
    first_token_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    queue_deadline_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField()
    asked_at = models.DateTimeField(null=True, blank=True)
    unknown_at = models.DateTimeField(null=True, blank=True)

    prompt_token_count = models.PositiveIntegerField(default=0)
    cached_prompt_token_count = models.PositiveIntegerField(default=0)
    output_token_count = models.PositiveIntegerField(default=0)
    preemption_count = models.PositiveIntegerField(default=0)
    busy_seconds = models.FloatField(default=0.0)
    wasted_seconds = models.FloatField(default=0.0)

    class Meta:
        ordering = ["-received_at", "-id"]
        permissions = [("abort_inferencerequest", "Can abort inference requests")]
        indexes = [
            models.Index(fields=["-received_at", "-id"], name="request_newest"),
            models.Index(fields=["owner", "-received_at"], name="request_owner_newest"),
            models.Index(fields=["state", "-received_at"], name="request_state_newest"),
            models.Index(fields=["owner", "client_id"], name="request_client_id"),
            models.Index(
                fields=["replica", "epoch"],
                name="request_live_replica",
                condition=Q(state__in=LIVE_STATES),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "client_id"],
                name="request_live_client_id",
                condition=~Q(client_id="") & Q(state__in=LIVE_STATES),
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def is_live(self) -> bool:
        return State(self.state) in LIVE


class Choice(models.Model):
    """One answer of a request. Empty `finish_reason`: it is live. Whole once it has ended."""

    request = models.ForeignKey(
        InferenceRequest, on_delete=models.CASCADE, related_name="choices", db_index=False
    )
    index = models.PositiveIntegerField()
    finish_reason = models.CharField(
        max_length=16,
        blank=True,
        default="",
        choices=[(one.value, one.value) for one in FinishReason],
    )
    output_token_count = models.PositiveIntegerField(default=0)
    text = models.TextField(blank=True, default="")
    token_ids = models.JSONField(default=list)
    logprobs = models.JSONField(null=True, blank=True)
    stop_reason = models.JSONField(null=True, blank=True)
    cause = models.CharField(max_length=32, blank=True, default="")
    reason = models.TextField(blank=True, default="")
    abort_id = models.CharField(max_length=40, blank=True, default="")
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["request", "index"]
        constraints = [
            models.UniqueConstraint(fields=["request", "index"], name="choice_once"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}[{self.index}]"


class Transition(models.Model):
    """One step of a request's life; with `choice_index`, the end of one of its choices.

    `at` is when it happened, by the clock of the process that saw it; `recorded_at` is when it
    was written. `seq` counts from 1 without a gap.
    """

    request = models.ForeignKey(
        InferenceRequest, on_delete=models.CASCADE, related_name="transitions", db_index=False
    )
    seq = models.PositiveIntegerField()
    choice_index = models.PositiveIntegerField(null=True, blank=True)
    from_state = models.CharField(max_length=16, blank=True, default="")
    to_state = models.CharField(max_length=16, choices=_STATES)
    trigger = models.CharField(max_length=16, choices=[(one.value, one.value) for one in Trigger])
    actor = models.CharField(max_length=200)
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["request", "seq"]
        constraints = [
            models.UniqueConstraint(fields=["request", "seq"], name="transition_dense"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}#{self.seq} {self.trigger}"
