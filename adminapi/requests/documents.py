"""Requests and their events as the schema describes them; representations write the answers."""

from __future__ import annotations

from rest_framework import serializers

from inference.generation import AbortCause, FinishReason
from inference.lifecycle import State, Trigger
from ledger.models import InferenceRequest

STATES = [str(state) for state in State]


class ErrorInfoSerializer(serializers.Serializer[None]):
    code = serializers.CharField()
    message = serializers.CharField()


class AbortInfoSerializer(serializers.Serializer[None]):
    id = serializers.CharField(allow_null=True)
    cause = serializers.ChoiceField(choices=[str(cause) for cause in AbortCause])
    reason = serializers.CharField(allow_null=True)


class RequestSerializer(serializers.Serializer[None]):
    """Who, what and how far, without content. Counts are tokens, durations seconds."""

    id = serializers.CharField()
    object = serializers.CharField(default="request")
    response_id = serializers.CharField()
    client_request_id = serializers.CharField(allow_null=True)
    kind = serializers.ChoiceField(choices=InferenceRequest.Kind.choices)
    state = serializers.ChoiceField(choices=STATES)
    model = serializers.CharField()
    owner = serializers.CharField()
    submitted_by = serializers.CharField()
    metadata = serializers.DictField(child=serializers.CharField())
    stream = serializers.BooleanField()
    priority = serializers.IntegerField()
    n = serializers.IntegerField()
    choice_count = serializers.IntegerField()
    generation = serializers.IntegerField()
    replica = serializers.CharField(allow_null=True)
    cause = serializers.CharField(
        allow_null=True, help_text="Of its abort; of what failed, the code of the error."
    )
    aborted_by = serializers.CharField(allow_null=True)
    reason = serializers.CharField(allow_null=True)
    abort_id = serializers.CharField(allow_null=True)
    error = ErrorInfoSerializer(allow_null=True)
    received_at = serializers.DateTimeField()
    held_at = serializers.DateTimeField(allow_null=True)
    queued_at = serializers.DateTimeField(allow_null=True)
    first_scheduled_at = serializers.DateTimeField(allow_null=True)
    first_token_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    deadline_at = serializers.DateTimeField(allow_null=True)
    queue_deadline_at = serializers.DateTimeField(allow_null=True)
    prompt_token_count = serializers.IntegerField()
    cached_prompt_token_count = serializers.IntegerField()
    output_token_count = serializers.IntegerField()
    preemption_count = serializers.IntegerField()
    busy_seconds = serializers.FloatField()
    wasted_seconds = serializers.FloatField()


class ChoiceSerializer(serializers.Serializer[None]):
    """Text, tokens and logprobs are there unless content retention is off."""

    index = serializers.IntegerField()
    finish_reason = serializers.ChoiceField(
        choices=[str(reason) for reason in FinishReason], allow_null=True
    )
    stop_reason = serializers.JSONField(allow_null=True)
    output_token_count = serializers.IntegerField()
    finished_at = serializers.DateTimeField(allow_null=True)
    abort = AbortInfoSerializer(allow_null=True)
    error = ErrorInfoSerializer(allow_null=True)
    text = serializers.CharField(required=False)
    token_ids = serializers.ListField(child=serializers.IntegerField(), required=False)
    logprobs = serializers.JSONField(allow_null=True, required=False)


class RequestDetailSerializer(RequestSerializer):
    params = serializers.DictField()
    choices = ChoiceSerializer(many=True)
    prompt = serializers.JSONField(required=False)


class EventSerializer(serializers.Serializer[None]):
    seq = serializers.IntegerField()
    choice_index = serializers.IntegerField(allow_null=True)
    from_state = serializers.ChoiceField(choices=STATES, allow_null=True)
    to_state = serializers.ChoiceField(choices=STATES)
    trigger = serializers.ChoiceField(choices=[str(trigger) for trigger in Trigger])
    actor = serializers.CharField()
    at = serializers.DateTimeField()
    recorded_at = serializers.DateTimeField()
    detail = serializers.DictField()


class EventListSerializer(serializers.Serializer[None]):
    object = serializers.CharField(default="list")
    data = EventSerializer(many=True)  # type: ignore[assignment]  # a field
    has_more = serializers.BooleanField(help_text="Go on with `after` = the last `seq`.")


class RequestListSerializer(serializers.Serializer[None]):
    object = serializers.CharField(default="list")
    data = RequestSerializer(many=True)  # type: ignore[assignment]  # a field
    has_more = serializers.BooleanField()
    next = serializers.CharField(allow_null=True)
