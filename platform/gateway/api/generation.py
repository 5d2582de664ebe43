"""`POST /v1/chat/completions` and `/v1/completions`: thin, and equal but for their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request

from accounts.authentication import caller_of
from accounts.permissions import CanInfer
from gateway.api.answers import EVENT_STREAM, STREAM_HEADERS, events, whole
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.api.identity import PARAMETERS, client_id_of, echo_headers, id_headers
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
from ledger.ids import response_id

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
        order = type(self).order_of(fields, client_id=client_id_of(request, fields))
        return submission_begin(caller=caller_of(request), order=order, relay=relay_get())

    def headers_at_first(self, request: HttpRequest) -> dict[str, str]:
        return echo_headers(request)

    async def abandoned(self, prepared: Submission) -> None:
        await submission_abandon(prepared, relay=relay_get())

    async def post(self, request: Request, prepared: Submission) -> HttpResponseBase:
        client_id = prepared.order.client_id
        self.headers.update(id_headers(prepared.request_id, client_id=client_id))
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


@extend_schema_view(
    post=extend_schema(
        request=ChatCompletionSerializer,
        responses=_ANSWERS,
        parameters=PARAMETERS,
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
        parameters=PARAMETERS,
        operation_id="completions_create",
    )
)
class CompletionsView(GenerationView):
    """Continue one prompt or several, streamed or whole."""

    serializer_class = CompletionSerializer
    order_of = completion_order
