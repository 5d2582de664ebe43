"""A mailbox as an HTTP response: a stream of server-sent events, or one object at the end.

Whatever happens to the client, the mailbox is closed, and a request that has not ended is
aborted. Knows the order in which a stream ends, and leaves the words to `openai`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gateway.api.errors import error_body
from gateway.api.openai import Rendering
from gateway.connection import ClientConnection
from gateway.mailbox import Mailbox, coalesced
from inference.errors import EngineError, HaltlineError, QueueDeadlineError, by_code
from inference.generation import FinishReason
from inference.wire import ChoiceOutput

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


async def events(
    mailbox: Mailbox, rendering: Rendering, client: ClientConnection
) -> AsyncIterator[bytes]:
    """Everything that has arrived at a time goes out as one piece, one chunk per choice.

    Each choice ends with a terminal chunk; then usage if asked for, the error if there was one,
    and `[DONE]`.
    """
    mailbox.open()
    try:
        yield _data(*rendering.opening()) or b": accepted\n\n"
        failure: HaltlineError | None = None
        while outputs := await mailbox.drain():
            failure = failure or failure_of(outputs, mailbox)
            if piece := _pieces(outputs, rendering):
                yield piece
        yield _end(mailbox, rendering, failure=mailbox.lost or failure)
    finally:
        mailbox.close(client.cause_of_end)


async def whole(mailbox: Mailbox, rendering: Rendering, client: ClientConnection) -> dict[str, Any]:
    """The object, once every choice has ended. Raises the error that ended the request."""
    return rendering.whole(await gathered(mailbox, client), mailbox)


async def gathered(mailbox: Mailbox, client: ClientConnection) -> list[ChoiceOutput]:
    """All outputs, one per choice, once each has ended. Raises as `whole` does."""
    mailbox.open()
    try:
        outputs: list[ChoiceOutput] = []
        while news := await mailbox.drain():
            outputs += news
    finally:
        mailbox.close(client.cause_of_end)
    failure = mailbox.lost or failure_of(outputs, mailbox) or _expiry(outputs, mailbox)
    if failure is not None:
        raise failure
    return coalesced(outputs)


def failure_of(outputs: list[ChoiceOutput], mailbox: Mailbox) -> HaltlineError | None:
    """The first failure among these, under whose request id the partial output is readable."""
    for output in outputs:
        if output.finish_reason is FinishReason.ERROR:
            kind = by_code(output.error_code or EngineError.code)
            return kind(output.error_message, request_id=mailbox.key.request_id)
    return None


def _expiry(outputs: list[ChoiceOutput], mailbox: Mailbox) -> HaltlineError | None:
    """Where nothing at all was started in time, there is nothing to answer with."""
    ends = {one.finish_reason for one in outputs if one.finish_reason is not None}
    if ends == {FinishReason.EXPIRED}:
        return QueueDeadlineError(request_id=mailbox.key.request_id)
    return None


def _pieces(outputs: list[ChoiceOutput], rendering: Rendering) -> bytes:
    return _data(
        *(
            rendering.chunk([rendering.chunk_choice(output)])
            for output in outputs
            if rendering.says_something(output)
        )
    )


def _end(mailbox: Mailbox, rendering: Rendering, *, failure: HaltlineError | None) -> bytes:
    broken = [
        ChoiceOutput(key=mailbox.key, index=index, finish_reason=FinishReason.ERROR)
        for index, choice in enumerate(mailbox.progress)
        if choice.finish_reason is None
    ]
    if broken and failure is None:
        failure = EngineError(request_id=mailbox.key.request_id)
    pieces = _pieces(broken, rendering)
    if rendering.order.include_usage:
        pieces += _data(rendering.usage_chunk(mailbox))
    if failure is not None:
        pieces += _data(error_body(failure))
    return pieces + DONE


def _data(*messages: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + _encoder.encode(message) + b"\n\n" for message in messages)
