"""`/v1/responses`: create, fetch or follow, cancel and delete. Thin: check, one call, answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.authentication import caller_of
from accounts.permissions import CanAbort, CanInfer, CanRead
from gateway.api.answers import EVENT_STREAM, STREAM_HEADERS
from gateway.api.base import AsyncAPIView
from gateway.api.errors import json_response
from gateway.api.identity import PARAMETERS, client_id_of, echo_headers, id_headers
from gateway.api.responses_answers import followed_events, mailbox_events, mailbox_object
from gateway.api.responses_fields import Look, ResponseSerializer, look_of
from gateway.api.responses_objects import Frame
from gateway.api.responses_record import (
    frame_of,
    frame_of_order,
    response_find,
    response_get,
    response_json,
)
from gateway.api.responses_script import Script
from gateway.connection import connection_of
from gateway.database import in_database
from gateway.dispatch import background_open
from gateway.orders import response_order
from gateway.relay import relay_get
from gateway.stops import request_stop
from gateway.submission import (
    Submission,
    submission_abandon,
    submission_begin,
    submission_send,
)
from gateway.waiting import settled
from inference.errors import ConflictError
from ledger import services
from ledger.models import LIVE_STATES, InferenceRequest
from ledger.push import group_of

# Within which a cancelled response has ended, unless its engine or the workers do not answer.
SETTLE_SECONDS = 5.0
_OBJECT = {(200, "application/json"): OpenApiTypes.OBJECT}
_ANSWERS = {**_OBJECT, (200, "text/event-stream"): OpenApiTypes.STR}
_LOOK = [
    OpenApiParameter("stream", bool, description="As events, from its beginning, until it ends."),
    OpenApiParameter(
        "starting_after", int, description="With stream: only events after this sequence_number."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A response that runs for nobody in particular."""

    request_id: str
    frame: Frame
    look: Look
    shown: dict[str, Any]
    client_id: str = ""


class ResponsesView(AsyncAPIView[Submission | Running]):
    """Answer, streamed or whole, or in the background."""

    permission_classes = [CanInfer]

    def headers_at_first(self, request: HttpRequest) -> dict[str, str]:
        return echo_headers(request)

    def prepare(self, request: Request) -> Submission | Running:
        serializer = ResponseSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        fields = serializer.validated_data
        order = response_order(fields, client_id=client_id_of(request, fields))
        caller = caller_of(request)
        if not order.background:
            return submission_begin(caller=caller, order=order, relay=relay_get())
        row = background_open(caller=caller, order=order, relay=relay_get())
        look = Look(stream=order.stream, after=-1)
        return _running(row, look, client_id=order.client_id)

    async def abandoned(self, prepared: Submission | Running) -> None:
        if isinstance(prepared, Submission):
            await submission_abandon(prepared, relay=relay_get())

    @extend_schema(
        operation_id="responses_create",
        request=ResponseSerializer,
        responses=_ANSWERS,
        parameters=PARAMETERS,
    )
    async def post(self, request: Request, prepared: Submission | Running) -> HttpResponseBase:
        if isinstance(prepared, Running):
            client_id = prepared.client_id
            self.headers.update(id_headers(prepared.request_id, client_id=client_id))
            return _shown(prepared)
        client_id = prepared.order.client_id
        self.headers.update(id_headers(prepared.request_id, client_id=client_id))
        return await _answer(request, prepared)


class ResponseView(AsyncAPIView[Running]):
    """One response: as it stands, or from its beginning until it ends, whoever it runs for."""

    def get_permissions(self) -> list[BasePermission]:
        return [CanAbort() if self.request.method == "DELETE" else CanRead()]

    def prepare(self, request: Request) -> Running:
        look = look_of(request.query_params)
        caller, any_id = caller_of(request), self.kwargs["response_id"]
        row = response_get(caller=caller, any_id=any_id)
        if request.method == "DELETE":
            request_stop(caller=caller, row=row)
        return _running(row, look)

    @extend_schema(operation_id="responses_retrieve", responses=_ANSWERS, parameters=_LOOK)
    async def get(self, request: Request, running: Running, response_id: str) -> HttpResponseBase:  # noqa: ARG002 (the base's signature)
        return _shown(running)

    @extend_schema(operation_id="responses_delete", responses=_OBJECT)
    async def delete(self, request: Request, running: Running, response_id: str) -> HttpResponse:  # noqa: ARG002
        """One that runs is stopped. Its content is erased; the bare record stays."""
        if not await _has_ended(running.request_id):
            raise ConflictError("The response has not ended yet; try again.", retry_after=1.0)
        await in_database(services.content_erase, request_id=running.request_id)
        deleted = {"id": running.frame.response_id, "object": "response", "deleted": True}
        return json_response(deleted)


class ResponseCancelView(AsyncAPIView[str]):
    """Stop a response; safe to repeat. One that had ended keeps its end."""

    permission_classes = [CanAbort]

    def prepare(self, request: Request) -> str:
        caller = caller_of(request)
        row = response_find(caller=caller, any_id=self.kwargs["response_id"])
        request_stop(caller=caller, row=row)
        return row.pk

    @extend_schema(operation_id="responses_cancel", request=None, responses=_OBJECT)
    async def post(self, request: Request, request_id: str, response_id: str) -> HttpResponse:  # noqa: ARG002 (the base's signature)
        """With the output so far. `in_progress` if its engine has not confirmed within 5 s."""
        await _has_ended(request_id)
        return json_response(await in_database(response_json, request_id))


async def _answer(request: Request, submission: Submission) -> HttpResponseBase:
    mailbox = await submission_send(submission, relay=relay_get())
    client = connection_of(getattr(request._request, "scope", {}))
    frame = frame_of_order(
        submission.order,
        request_id=submission.request_id,
        created=int(submission.received_at.timestamp()),
    )
    if not submission.order.stream:
        return json_response(await mailbox_object(mailbox, frame, client))
    return _stream(mailbox_events(mailbox, Script(frame), client))


def _running(row: InferenceRequest, look: Look, *, client_id: str = "") -> Running:
    return Running(
        request_id=row.pk,
        frame=frame_of(row),
        look=look,
        shown={} if look.stream else response_json(row.pk),
        client_id=client_id,
    )


def _shown(running: Running) -> HttpResponseBase:
    if not running.look.stream:
        return json_response(running.shown)
    script = Script(running.frame, after=running.look.after)
    return _stream(followed_events(running.request_id, script, relay=relay_get()))


def _stream(events: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(events, content_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def _has_ended(request_id: str) -> bool:
    return await settled(
        group_of("request", request_id),
        lambda: in_database(_is_over, request_id),
        seconds=SETTLE_SECONDS,
    )


def _is_over(request_id: str) -> bool:
    live = InferenceRequest.objects.filter(pk=request_id, state__in=LIVE_STATES)
    return not live.exists()
