"""The body of `POST /v1/responses` and the query of `GET /v1/responses/{id}`, to the letter.

As on the other routes: fields that change nothing here are listed as ignored, those whose effect
we lack are refused unless they ask for nothing, and whatever else is unknown is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import QueryDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gateway.api.fields import Flag, Ignored, Integer, StrictSerializer, Text, Unsupported
from gateway.api.serializers import (
    ResponseFormatSerializer,
    SamplingSerializer,
    min_tokens_check,
)
from gateway.prompts import LARGEST_TOKEN_ID
from gateway.response_input import ROLES, input_problem
from inference.errors import InvalidRequestError

LONGEST_INSTRUCTIONS = 1_000_000
LARGEST_SEQUENCE_NUMBER = 2**53
_TEXT: dict[str, Any] = {"type": "string"}


@extend_schema_field(
    {
        "oneOf": [
            _TEXT,
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"role": {"enum": sorted(ROLES)}, "content": _TEXT},
                    "required": ["role", "content"],
                },
            },
        ]
    }
)
class InputField(serializers.Field[Any, Any, Any, Any]):
    """A string or a list of messages, checked, as it was sent."""

    def to_internal_value(self, data: Any) -> Any:
        problem = input_problem(data)
        if problem is not None:
            path, text = problem
            raise serializers.ValidationError({path: [text]} if path else [text])
        return data


class EarlierResponse(Unsupported):
    """Only what asks for nothing, with a word on what to do instead."""

    def to_internal_value(self, data: Any) -> None:  # noqa: ARG002 - whatever it is
        raise serializers.ValidationError(
            "Conversations are not kept here: send the earlier messages in input."
        )


class TextOptionsSerializer(StrictSerializer):
    format = ResponseFormatSerializer(required=False, allow_null=True)
    verbosity = Ignored()


class ResponseStreamOptionsSerializer(StrictSerializer):
    include_obfuscation = Ignored()


class ResponseSerializer(SamplingSerializer):
    input = InputField()
    instructions = Text(allow_blank=True, max_length=LONGEST_INSTRUCTIONS)
    max_output_tokens = Integer(min_value=1, max_value=LARGEST_TOKEN_ID)
    background = Flag(help_text="Runs whether or not anybody listens.")
    store = Flag(help_text="False: it cannot be fetched once it is answered.")
    stream_options = ResponseStreamOptionsSerializer(required=False, allow_null=True)
    text = TextOptionsSerializer(required=False, allow_null=True)

    previous_response_id = EarlierResponse()
    conversation = EarlierResponse()

    parallel_tool_calls = Ignored()
    max_tool_calls = Ignored()
    reasoning = Ignored()
    prompt_cache_options = Ignored()
    include = Unsupported(harmless=([],))
    prompt = Unsupported()
    tools = Unsupported(harmless=([],))
    tool_choice = Unsupported(harmless=("none", "auto"))
    top_logprobs = Unsupported(harmless=(0,))
    truncation = Unsupported(harmless=("disabled",))
    context_management = Unsupported(harmless=([],))
    moderation = Unsupported()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super().validate(attrs)
        given.pop("text", None)  # plain text is all there is
        min_tokens_check(given, most=given.get("max_output_tokens"))
        if "stream_options" in given and not given.get("stream"):
            raise serializers.ValidationError({"stream_options": ["It needs stream: true."]})
        if given.get("background"):
            _check_background(given)
        return given


def _check_background(given: dict[str, Any]) -> None:
    if given.get("store") is False:
        raise serializers.ValidationError({"background": ["It needs store: true."]})
    if settings.HALTLINE_RETENTION_DAYS <= 0:
        raise serializers.ValidationError(
            {"background": ["This server keeps no content, so nothing could be fetched."]}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a response is to be shown: whole, or as events, those after number `after`."""

    stream: bool
    after: int


def look_of(query: QueryDict) -> Look:
    """Raises `InvalidRequestError` for what is unknown or wrong."""
    unknown = sorted(set(query) - {"stream", "starting_after", "include_obfuscation"})
    if unknown:
        raise InvalidRequestError("There is no such parameter.", param=unknown[0])
    stream = query.get("stream", "false")
    if stream not in {"true", "false"}:
        raise InvalidRequestError("true or false is needed.", param="stream")
    after = query.get("starting_after")
    if after is not None and stream == "false":
        raise InvalidRequestError("It needs stream=true.", param="starting_after")
    return Look(stream=stream == "true", after=_number(after) if after is not None else -1)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= LARGEST_SEQUENCE_NUMBER):
        raise InvalidRequestError("A sequence number is needed.", param="starting_after")
    return int(text[:20])
