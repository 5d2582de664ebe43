"""The query of the list of requests, validated."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from adminapi.pages import PageQuerySerializer
from adminapi.requests.causes import CAUSES
from adminapi.strict import OneOf, StrictSerializer, Text, TextMap
from inference.lifecycle import State
from ledger.specs import RequestFilter


class RequestQuerySerializer(PageQuerySerializer):
    """All that is given must apply."""

    state = OneOf(choices=[str(state) for state in State], required=False)
    owner = Text(required=False, max_length=200, help_text="The owner's name.")
    model = Text(required=False, max_length=200)
    cause = OneOf(choices=CAUSES, required=False)
    since = serializers.DateTimeField(required=False, help_text="Received at or after.")
    until = serializers.DateTimeField(required=False, help_text="Received before.")
    metadata = TextMap(required=False)

    def filters(self) -> RequestFilter:
        fields: dict[str, Any] = dict(self.validated_data)
        return RequestFilter(**{key: fields[key] for key in fields.keys() - {"limit", "cursor"}})


class EventQuerySerializer(StrictSerializer):
    after = serializers.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, default=0, help_text="A `seq`."
    )
    limit = serializers.IntegerField(required=False, min_value=1, max_value=1000, default=1000)
