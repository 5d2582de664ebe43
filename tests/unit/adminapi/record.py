"""Make records as production does: opened by the ledger, ended by an engine's events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client

from accounts.callers import Caller
from inference.events import ChoiceEnd, RequestEvent, TimelineEntry
from inference.generation import FinishReason
from inference.lifecycle import Trigger
from inference.wire import AbortInfo, RequestKey
from ledger.models import InferenceRequest
from ledger.services import events_record, request_open
from ledger.specs import NewRequest, Placement
from tests.cast import STAFF_PASSWORD

# What the fixture `opened` gives.
Open = Callable[..., InferenceRequest]

PLACEMENT = Placement(replica="engine-0", epoch="epoch-1", web="web-1")


def open_request(
    caller: Caller, *, prompt: str = "Say hello.", held: bool = False, **fields: Any
) -> InferenceRequest:
    """A request that waits in an engine's queue; with `held`, one that nobody holds yet."""
    spec = NewRequest(
        **{
            "kind": "completion",
            "model": "tiny",
            "prompt": [prompt],
            "params": {"max_tokens": 64},
            **fields,
        }
    )
    return request_open(caller=caller, spec=spec, placement=None if held else PLACEMENT)


def run(row: InferenceRequest) -> None:
    """The engine says that it runs."""
    _record(row, [_scheduled()])


def finish(
    row: InferenceRequest, *, text: str = "Hello.", token_ids: tuple[int, ...] = (1, 2)
) -> None:
    end = ChoiceEnd(index=0, finish_reason=FinishReason.STOP, text=text, token_ids=list(token_ids))
    _record(row, [_scheduled(), _end(Trigger.FINISH, end)])


def confirm_abort(
    row: InferenceRequest, info: AbortInfo, *, text: str = "Hel", tokens: int = 3
) -> None:
    """The engine says that it stopped and released it."""
    end = ChoiceEnd(
        index=0,
        finish_reason=FinishReason.ABORT,
        text=text,
        token_ids=list(range(tokens)),
        abort=info,
    )
    _record(row, [_scheduled(), _end(Trigger.ABORT_CONFIRM, end)])


def _scheduled() -> TimelineEntry:
    return TimelineEntry(seq=1, at=time.time(), trigger=Trigger.SCHEDULE)


def _end(trigger: Trigger, end: ChoiceEnd) -> TimelineEntry:
    now = time.time()
    return TimelineEntry(seq=2, at=now, trigger=trigger, choice_end=end, first_token_at=now - 0.001)


def _record(row: InferenceRequest, timeline: list[TimelineEntry]) -> None:
    ends = [entry.choice_end for entry in timeline if entry.choice_end]
    event = RequestEvent(
        key=RequestKey(row.pk, row.generation),
        replica=PLACEMENT.replica,
        epoch=PLACEMENT.epoch,
        timeline=timeline,
        prompt_tokens=5,
        output_tokens=sum(len(end.token_ids) for end in ends),
    )
    recorded = events_record(events=[event])
    assert recorded.applied == 1, recorded
    row.refresh_from_db()


def staff_with(name: str, *permissions: str) -> User:
    """A member of staff who may do just this."""
    user = User.objects.create_user(name, password=STAFF_PASSWORD, is_staff=True)
    for permission in permissions:
        app_label, codename = permission.split(".")
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label=app_label, codename=codename)
        )
    return user


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
