"""Serializer fields for prompts and messages: they check, and give back what was sent."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gateway.prompts import ROLES, is_token_ids, message_problem

MOST_PROMPTS = 1024
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_TEXT: dict[str, Any] = {"type": "string"}


@extend_schema_field(
    {
        "oneOf": [
            _TEXT,
            {"type": "array", "items": _TEXT},
            _IDS,
            {"type": "array", "items": _IDS},
        ]
    }
)
class PromptField(serializers.Field[Any, Any, Any, Any]):
    """A string, token ids, or a list of either: gives the list of prompts as they were sent."""

    def to_internal_value(self, data: Any) -> list[Any]:
        prompts = [data] if isinstance(data, str) or is_token_ids(data) else data
        if not isinstance(prompts, list) or not prompts:
            raise serializers.ValidationError(
                "A string, a list of strings, token ids or a list of token id lists is needed."
            )
        if len(prompts) > MOST_PROMPTS:
            raise serializers.ValidationError(f"At most {MOST_PROMPTS} prompts.")
        for position, prompt in enumerate(prompts):
            if not isinstance(prompt, str) and not is_token_ids(prompt):
                raise serializers.ValidationError(
                    {str(position): ["A string or a list of token ids is needed."]}
                )
            if prompt == "":
                raise serializers.ValidationError({str(position): ["A prompt must not be empty."]})
        return prompts


@extend_schema_field(
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"role": {"enum": sorted(ROLES)}, "content": _TEXT},
            "required": ["role"],
        },
    }
)
class MessagesField(serializers.Field[Any, Any, Any, Any]):
    """A list of messages, checked, as they were sent."""

    def to_internal_value(self, data: Any) -> list[dict[str, Any]]:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("A list of at least one message is needed.")
        for position, message in enumerate(data):
            problem = message_problem(message)
            if problem is not None:
                path, text = problem
                raise serializers.ValidationError({f"{position}{path}": [text]})
        return data
