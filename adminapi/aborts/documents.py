"""Receipts as the schema describes them. The ledger's representations write the answers."""

from __future__ import annotations

from rest_framework import serializers

from inference.generation import AbortCause
from inference.lifecycle import State
from ledger.models import Abort, AbortTarget


class ChoiceCountSerializer(serializers.Serializer[None]):
    index = serializers.IntegerField()
    output_token_count = serializers.IntegerField()


class TargetSerializer(serializers.Serializer[None]):
    requested_id = serializers.CharField()
    request_id = serializers.CharField(allow_null=True)
    outcome = serializers.ChoiceField(choices=AbortTarget.Outcome.choices)
    state_before = serializers.ChoiceField(choices=[str(state) for state in State], allow_null=True)
    output_token_count = serializers.IntegerField(allow_null=True)
    released_at = serializers.DateTimeField(allow_null=True)
    confirmed_at = serializers.DateTimeField(allow_null=True)
    choices = ChoiceCountSerializer(many=True)
    detail = serializers.CharField(required=False)


class CountsSerializer(serializers.Serializer[None]):
    targets = serializers.IntegerField()
    pending = serializers.IntegerField()
    aborted = serializers.IntegerField()
    already_finished = serializers.IntegerField()
    not_found = serializers.IntegerField()
    engine_lost = serializers.IntegerField()
    unconfirmed = serializers.IntegerField()


class AbortedSerializer(serializers.Serializer[None]):
    request_id = serializers.CharField()
    output_token_count = serializers.IntegerField()


class ResultSerializer(serializers.Serializer[None]):
    aborted = AbortedSerializer(many=True)
    not_found = serializers.ListField(child=serializers.CharField())


class ReceiptSerializer(serializers.Serializer[None]):
    """`targets` and `result` list the first 1 000; `counts` is always whole."""

    id = serializers.CharField(allow_null=True, help_text="Null for a dry run.")
    object = serializers.CharField(default="abort")
    status = serializers.ChoiceField(choices=Abort.Status.choices)
    created_at = serializers.DateTimeField()
    done_at = serializers.DateTimeField(allow_null=True)
    requested_by = serializers.CharField()
    cause = serializers.ChoiceField(choices=[str(cause) for cause in AbortCause])
    reason = serializers.CharField(allow_null=True)
    selector = serializers.JSONField()
    counts = CountsSerializer()
    targets = TargetSerializer(many=True)
    result = ResultSerializer()
    dry_run = serializers.BooleanField(required=False)
    targets_next = serializers.CharField(
        required=False, help_text="Give it as `targets_after` for the next page of targets."
    )


class ReceiptListSerializer(serializers.Serializer[None]):
    object = serializers.CharField(default="list")
    data = ReceiptSerializer(many=True)  # type: ignore[assignment]  # a field
    has_more = serializers.BooleanField()
    next = serializers.CharField(allow_null=True)
