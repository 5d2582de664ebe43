"""`POST /v1/chat/completions` and `/v1/completions`: thin, and equal but for their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request

from accounts.authentication import caller_of
from accounts.permissions import CanInfer
from gateway.api.answers import EVENT_STREAM, STREAM_HEADERS, events, whole
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.api.openai import Rendering, rendering_of
from gateway.api.serializers import (
    ChatCompletionSerializer,
    CompletionSerializer,
    GenerationSerializer,
)
from gateway.connection import connection_of
from gateway.mailbox import Mailbox
from gateway.orders import Order, chat_order, completion_order
from gateway.relay import relay_get
from gateway.submission import (
    Submission,
    submission_abandon,
    submission_begin,
    submission_send,
)
from inference.errors import HaltlineError
from ledger.ids import client_id_check, response_id

CLIENT_ID_HEADER = "X-Request-Id"
INTERNAL_ID_HEADER = "X-Haltline-Request-Id"
_PARAMETERS = [
    OpenApiParameter(
        CLIENT_ID_HEADER, str, OpenApiParameter.HEADER, description="The client's own id."
    )
]
_ANSWERS = {
    (200, "application/json"): OpenApiTypes.OBJECT,
    (200, "text/event-stream"): OpenApiTypes.STR,
}


class GenerationView(AsyncAPIView[Submission]):
    """One hop to the database, the engine's word, then the answer."""

    permission_classes = [CanInfer]
    serializer_class: ClassVar[type[GenerationSerializer]]
    order_of: ClassVar[Callable[..., Order]]

    def prepare(self, request: Request) -> Submission:
        serializer = self.serializer_class(data=request.data)
        serializer.is_valid(raise_exception=True)
        fields = serializer.validated_data
        order = type(self).order_of(fields, client_id=_client_id(request, fields))
        return submission_begin(caller=caller_of(request), order=order, relay=relay_get())

    def headers_at_first(self, request: HttpRequest) -> dict[str, str]:
        """An id that is fit for one is echoed even if nothing else of the request is."""
        sent = request.headers.get(CLIENT_ID_HEADER, "")
        try:
            return {CLIENT_ID_HEADER: client_id_check(sent)}
        except HaltlineError:
            return {}

    async def abandoned(self, prepared: Submission) -> None:
        await submission_abandon(prepared, relay=relay_get())

    async def post(self, request: Request, prepared: Submission) -> HttpResponseBase:
        self.headers.update(_id_headers(prepared))
        mailbox = await submission_send(prepared, relay=relay_get())
        return await _answer(request, prepared, mailbox)


async def _answer(request: Request, submission: Submission, mailbox: Mailbox) -> HttpResponseBase:
    rendering = _rendering(submission)
    client = connection_of(getattr(request._request, "scope", {}))
    if not submission.order.stream:
        return json_response(await whole(mailbox, rendering, client))
    return StreamingHttpResponse(
        events(mailbox, rendering, client), content_type=EVENT_STREAM, headers=STREAM_HEADERS
    )


def _rendering(submission: Submission) -> Rendering:
    return rendering_of(
        submission.order,
        response_id=response_id(submission.request_id, submission.order.kind),
        created=int(submission.received_at.timestamp()),
    )


def _client_id(request: Request, fields: dict[str, Any]) -> str:
    header = request.headers.get(CLIENT_ID_HEADER)
    if header is not None:
        return client_id_check(header, param=CLIENT_ID_HEADER)
    named = fields.get("request_id")
    return client_id_check(named) if named is not None else ""


def _id_headers(submission: Submission) -> dict[str, str]:
    return {
        CLIENT_ID_HEADER: submission.order.client_id or submission.request_id,
        INTERNAL_ID_HEADER: submission.request_id,
    }


@extend_schema_view(
    post=extend_schema(
        request=ChatCompletionSerializer,
        responses=_ANSWERS,
        parameters=_PARAMETERS,
        operation_id="chat_completions_create",
    )
)
class ChatCompletionsView(GenerationView):
    """Answer a chat, streamed or whole."""

    serializer_class = ChatCompletionSerializer
    order_of = chat_order


@extend_schema_view(
    post=extend_schema(
        request=CompletionSerializer,
        responses=_ANSWERS,
        parameters=_PARAMETERS,
        operation_id="completions_create",
    )
)
class CompletionsView(GenerationView):
    """Continue one prompt or several, streamed or whole."""

    serializer_class = CompletionSerializer
    order_of = completion_order
