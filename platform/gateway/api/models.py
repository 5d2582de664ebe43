"""`GET /v1/models`, and what the engine's tokenizer does: `POST /tokenize`, `/detokenize`."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request

from accounts.permissions import CanInfer
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.api.fields import Flag, Integer, StrictSerializer, Text
from gateway.api.prompt_fields import MessagesField
from gateway.prompts import LARGEST_TOKEN_ID, messages_for_engine
from gateway.relay import ServedModel, relay_get
from inference.errors import ModelNotFoundError
from inference.wire import ChatPrompt, Prompt, TextPrompt

MOST_TOKENS = 1_000_000


@extend_schema_view(get=extend_schema(responses=OpenApiTypes.OBJECT, operation_id="models_list"))
class ModelsView(AsyncAPIView[None]):
    """The models that are served."""

    permission_classes = [CanInfer]

    def prepare(self, request: Request) -> None:
        """Nothing but the caller is looked up."""

    async def get(self, _request: Request, _prepared: None) -> HttpResponse:
        models = [_model_json(model) for model in relay_get().models()]
        return json_response({"object": "list", "data": models})


@extend_schema_view(
    get=extend_schema(responses=OpenApiTypes.OBJECT, operation_id="models_retrieve")
)
class ModelView(AsyncAPIView[None]):
    """One model that is served."""

    permission_classes = [CanInfer]

    def prepare(self, request: Request) -> None:
        """Nothing but the caller is looked up."""

    async def get(self, _request: Request, _prepared: None, name: str) -> HttpResponse:
        for model in relay_get().models():
            if model.name == name:
                return json_response(_model_json(model))
        raise ModelNotFoundError(f"The model {name!r} does not exist.", param="model")


class TokenizeSerializer(StrictSerializer):
    """Either a prompt or messages."""

    model = Text(max_length=200)
    prompt = Text(allow_blank=True)
    messages = MessagesField(required=False, allow_null=True)
    add_special_tokens = Flag()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs.get("prompt") is None) == (attrs.get("messages") is None):
            raise serializers.ValidationError("Give either prompt or messages.")
        return {name: value for name, value in attrs.items() if value is not None}


class DetokenizeSerializer(StrictSerializer):
    model = Text(max_length=200)
    tokens = serializers.ListField(
        child=Integer(required=True, min_value=0, max_value=LARGEST_TOKEN_ID),
        max_length=MOST_TOKENS,
    )


@extend_schema_view(
    post=extend_schema(
        request=TokenizeSerializer, responses=OpenApiTypes.OBJECT, operation_id="tokenize"
    )
)
class TokenizeView(AsyncAPIView[dict[str, Any]]):
    """The tokens of a prompt, or of messages in the model's own chat template."""

    permission_classes = [CanInfer]

    def prepare(self, request: Request) -> dict[str, Any]:
        return _checked(TokenizeSerializer(data=request.data))

    async def post(self, _request: Request, prepared: dict[str, Any]) -> HttpResponse:
        link = relay_get().link_for(prepared.get("model"))
        prompt: Prompt = (
            ChatPrompt(messages_for_engine(prepared["messages"]))
            if "messages" in prepared
            else TextPrompt(prepared["prompt"])
        )
        special = prepared.get("add_special_tokens", "prompt" in prepared)
        answer = await link.tokenize(prompt, add_special_tokens=special)
        return json_response(
            {
                "tokens": answer.token_ids,
                "count": len(answer.token_ids),
                "max_model_len": answer.max_model_len,
            }
        )


@extend_schema_view(
    post=extend_schema(
        request=DetokenizeSerializer, responses=OpenApiTypes.OBJECT, operation_id="detokenize"
    )
)
class DetokenizeView(AsyncAPIView[dict[str, Any]]):
    """The text of tokens."""

    permission_classes = [CanInfer]

    def prepare(self, request: Request) -> dict[str, Any]:
        return _checked(DetokenizeSerializer(data=request.data))

    async def post(self, _request: Request, prepared: dict[str, Any]) -> HttpResponse:
        link = relay_get().link_for(prepared.get("model"))
        answer = await link.detokenize(prepared["tokens"])
        return json_response({"prompt": answer.text})


def _checked(serializer: StrictSerializer) -> dict[str, Any]:
    serializer.is_valid(raise_exception=True)
    fields: dict[str, Any] = serializer.validated_data
    return fields


def _model_json(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.since,
        "owned_by": "haltline",
        "max_model_len": model.max_model_len,
    }
