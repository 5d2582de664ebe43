"""Responses on their way out: events from a mailbox or a follower, or the object at the end.

A mailbox is closed whatever happens, and its request aborted if it has not ended; a follower
just leaves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from gateway.api.answers import gathered
from gateway.api.responses_objects import Frame
from gateway.api.responses_script import Event, Script
from gateway.connection import ClientConnection
from gateway.following import follow
from gateway.mailbox import Mailbox
from gateway.outcomes import Outcome, outcome_of_error, outcome_of_output
from gateway.relay import Relay
from inference.errors import EngineError
from inference.generation import Usage
from inference.wire import ChoiceOutput

_encoder = msgspec.json.Encoder()


async def mailbox_events(
    mailbox: Mailbox, script: Script, client: ClientConnection
) -> AsyncIterator[bytes]:
    """Ends with the event that says how the response ended."""
    mailbox.open()
    try:
        yield _encoded(script.opening() + script.running())
        outcome: Outcome | None = None
        while outputs := await mailbox.drain():
            events: list[Event] = []
            for output in outputs:
                outcome = _outcome(output, mailbox)
                if output.token_ids or output.text:
                    events += script.output(output.text)
            if events:
                yield _encoded(events)
        yield _encoded(script.ending(outcome or _lost(mailbox)))
    finally:
        mailbox.close(client.cause_of_end)


async def mailbox_object(
    mailbox: Mailbox, frame: Frame, client: ClientConnection
) -> dict[str, Any]:
    """Raises the error that ended the request."""
    for output in await gathered(mailbox, client):
        outcome = _outcome(output, mailbox)
        if outcome is not None:
            return frame.ended(outcome, output.text)
    raise EngineError(request_id=mailbox.key.request_id)


async def followed_events(request_id: str, script: Script, *, relay: Relay) -> AsyncIterator[bytes]:
    """As `mailbox_events`; at this process's drain it just ends, and another goes on with it."""
    yield _encoded(script.opening()) or b": attached\n\n"
    async with aclosing(follow(request_id, relay=relay)) as news:
        async for told in news:
            events: list[Event] = []
            if told.text or told.has_output:
                events += script.output(told.text)
            if told.outcome is not None:
                events += script.ending(told.outcome)
            if events:
                yield _encoded(events)


def _outcome(output: ChoiceOutput, mailbox: Mailbox) -> Outcome | None:
    if output.finish_reason is None:
        return None
    return outcome_of_output(output, _usage(mailbox))


def _lost(mailbox: Mailbox) -> Outcome:
    error = mailbox.lost or EngineError(request_id=mailbox.key.request_id)
    return outcome_of_error(error, _usage(mailbox))


def _usage(mailbox: Mailbox) -> Usage:
    """What has arrived here."""
    return Usage(
        prompt_tokens=sum(mailbox.accepted.result().prompt_tokens), output_tokens=mailbox.tokens
    )


def _encoded(events: Iterable[Event]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encoder.encode(event))
        for event in events
    )
