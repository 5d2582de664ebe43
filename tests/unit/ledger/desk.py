"""Opening requests as the web process does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.models import InferenceRequest
from ledger.services import request_open
from ledger.specs import NewRequest, Placement
from tests.cast import Member

PLACE = Placement(replica="r0", epoch="e1", web="web-1")
Submit = Callable[..., InferenceRequest]


def submitted(
    member: Member, *, placement: Placement | None = PLACE, **spec: Any
) -> InferenceRequest:
    defaults: dict[str, Any] = {"kind": "chat", "model": "tiny", "prompt": [{}], "params": {}}
    return request_open(
        caller=member.caller, spec=NewRequest(**{**defaults, **spec}), placement=placement
    )
