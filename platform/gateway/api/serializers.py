"""The bodies of `/v1/chat/completions` and `/v1/completions`, checked to the letter.

Fields of the OpenAI API that change nothing here are listed as ignored; those whose effect we
lack are refused unless they ask for nothing; whatever else is unknown is an error with its name.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from gateway.api.fields import (
    Flag,
    Ignored,
    Integer,
    Number,
    StrictSerializer,
    Strings,
    Text,
    TextMap,
    Unsupported,
)
from gateway.api.prompt_fields import MessagesField, PromptField
from gateway.prompts import LARGEST_TOKEN_ID, is_token_id

MOST_CHOICES = 128
MOST_LOGPROBS = 20
MOST_BIASES = 1024
LONGEST_DEADLINE = 7 * 24 * 3600.0


class StreamOptionsSerializer(StrictSerializer):
    include_usage = Flag()
    include_obfuscation = Ignored()


class ResponseFormatSerializer(StrictSerializer):
    type = serializers.ChoiceField(choices=["text"])


class LogitBiasField(serializers.DictField):
    """Token ids, as JSON strings, to a bias from -100 to 100."""

    def __init__(self) -> None:
        child = Number(required=True, min_value=-100, max_value=100)
        super().__init__(child=child, required=False, allow_null=True)

    def to_internal_value(self, data: Any) -> dict[int, float]:
        found: dict[str, float] = super().to_internal_value(data)
        if len(found) > MOST_BIASES:
            raise serializers.ValidationError(f"At most {MOST_BIASES} entries.")
        for name in found:
            if not (name.isascii() and name.isdigit() and is_token_id(int(name[:20]))):
                raise serializers.ValidationError({name: ["This is not a token id."]})
        return {int(name): bias for name, bias in found.items()}


class SamplingSerializer(StrictSerializer):
    """What every route that generates takes."""

    model = Text(required=True, max_length=200)
    temperature = Number(min_value=0, max_value=2)
    top_p = Number(above=0, max_value=1)
    top_k = Integer(min_value=-1, max_value=LARGEST_TOKEN_ID, help_text="0 and -1 filter nothing.")
    min_p = Number(min_value=0, max_value=1)
    stop = Strings(most=16, longest=1000)
    seed = Integer()
    presence_penalty = Number(min_value=-2, max_value=2)
    frequency_penalty = Number(min_value=-2, max_value=2)
    repetition_penalty = Number(above=0, max_value=100)
    logit_bias = LogitBiasField()
    stream = Flag()
    user = Text(allow_blank=True, max_length=512)

    ignore_eos = Flag()
    min_tokens = Integer(min_value=0, max_value=LARGEST_TOKEN_ID)
    stop_token_ids = serializers.ListField(
        child=Integer(required=True, min_value=0, max_value=LARGEST_TOKEN_ID),
        max_length=256,
        required=False,
        allow_null=True,
    )
    priority = Integer(min_value=-(2**31), max_value=2**31 - 1, help_text="Higher goes first.")
    deadline = Number(above=0, max_value=LONGEST_DEADLINE, help_text="Seconds for the whole.")
    queue_deadline = Number(above=0, max_value=LONGEST_DEADLINE, help_text="Seconds to wait.")
    request_id = Text(max_length=128, help_text="The client's own id; X-Request-Id goes before.")
    metadata = TextMap()

    service_tier = Ignored()
    safety_identifier = Ignored()
    prompt_cache_key = Ignored()
    prompt_cache_retention = Ignored()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in attrs.items() if value is not None}


class GenerationSerializer(SamplingSerializer):
    """What both completion routes take."""

    max_tokens = Integer(min_value=1, max_value=LARGEST_TOKEN_ID)
    n = Integer(min_value=1, max_value=MOST_CHOICES)
    stream_options = StreamOptionsSerializer(required=False, allow_null=True)
    response_format = ResponseFormatSerializer(required=False, allow_null=True)
    return_token_ids = Flag()

    store = Ignored()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super().validate(attrs)
        min_tokens_check(given, most=given.get("max_completion_tokens", given.get("max_tokens")))
        if "stream_options" in given and not given.get("stream"):
            raise serializers.ValidationError({"stream_options": ["It needs stream: true."]})
        return given


class ChatCompletionSerializer(GenerationSerializer):
    messages = MessagesField()
    max_completion_tokens = Integer(
        min_value=1, max_value=LARGEST_TOKEN_ID, help_text="Goes before max_tokens."
    )
    logprobs = Flag()
    top_logprobs = Integer(min_value=0, max_value=MOST_LOGPROBS)

    parallel_tool_calls = Ignored()
    reasoning_effort = Ignored()
    verbosity = Ignored()
    prediction = Ignored()
    modalities = Unsupported(harmless=(["text"],))
    tools = Unsupported(harmless=([],))
    tool_choice = Unsupported(harmless=("none", "auto"))
    functions = Unsupported(harmless=([],))
    function_call = Unsupported(harmless=("none", "auto"))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super().validate(attrs)
        if given.get("top_logprobs") and not given.get("logprobs"):
            raise serializers.ValidationError({"top_logprobs": ["It needs logprobs: true."]})
        return given


class CompletionSerializer(GenerationSerializer):
    prompt = PromptField()
    max_tokens = Integer(
        min_value=0, max_value=LARGEST_TOKEN_ID, help_text="0 with echo only: scores the prompt."
    )
    logprobs = Integer(min_value=0, max_value=MOST_LOGPROBS)
    echo = Flag()

    best_of = Unsupported(harmless=(1,))
    suffix = Unsupported(harmless=("",))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = super().validate(attrs)
        if len(given["prompt"]) * given.get("n", 1) > MOST_CHOICES * 8:
            raise serializers.ValidationError(
                {"n": [f"At most {MOST_CHOICES * 8} choices in all: prompts times n."]}
            )
        if given.get("max_tokens") == 0 and not given.get("echo"):
            raise serializers.ValidationError({"max_tokens": ["It must be 1 or more, or echo."]})
        return given


def min_tokens_check(given: dict[str, Any], *, most: int | None) -> None:
    """`most`: the limit that was given under one of its names."""
    if most is not None and given.get("min_tokens", 0) > most:
        raise serializers.ValidationError({"min_tokens": ["It is more than the most allowed."]})
