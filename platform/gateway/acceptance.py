"""Waiting for an engine's word on a request, and for the response that is to read it.

Knows neither links nor rows: a mailbox says when it was sent, and takes the verdict.
"""

from __future__ import annotations

import asyncio

from gateway.line import LineTimes
from gateway.mailbox import Mailbox
from inference.errors import UnavailableError
from inference.generation import AbortCause

SILENT = "The engine did not answer in time; try again later."


async def accepted(mailbox: Mailbox, times: LineTimes) -> Mailbox:
    """The mailbox, once an engine has taken its request.

    Raises the error that the engine named, or that ended the request before; `UnavailableError`
    without an answer in time. A cancellation aborts the request.
    """
    try:
        while not mailbox.accepted.done():
            await asyncio.wait({mailbox.accepted}, timeout=_patience(mailbox, times))
            if not mailbox.accepted.done() and _patience(mailbox, times) <= 0:
                mailbox.close(AbortCause.DEADLINE)
                raise UnavailableError(SILENT, request_id=mailbox.key.request_id)
        mailbox.accepted.result()
    except BaseException:
        mailbox.close()
        raise
    _expect_reader(mailbox, times)
    return mailbox


def _patience(mailbox: Mailbox, times: LineTimes) -> float:
    """Seconds left for the engine that has it; while none has it, another clock runs."""
    if mailbox.sent_at is None:
        return times.accept
    return mailbox.sent_at + times.accept - asyncio.get_running_loop().time()


def _expect_reader(mailbox: Mailbox, times: LineTimes) -> None:
    """A response whose client left before its first byte is never run: nobody reads then."""
    loop = asyncio.get_running_loop()
    due = loop.time() + times.unopened

    def look() -> None:
        if mailbox.opened or mailbox.closed:
            return
        if loop.time() - due > times.unopened / 2:
            _expect_reader(mailbox, times)  # the loop had stalled: the reader may be late too
        else:
            mailbox.close()

    loop.call_at(due, look)
