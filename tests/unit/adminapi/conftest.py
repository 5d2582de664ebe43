"""Rows and people for the console's tests: requests opened and ended by the ledger's services."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.test import Client

    from ledger.models import InferenceRequest
    from tests.cast import Member


@pytest.fixture
def opened(owner: Member) -> Callable[..., InferenceRequest]:
    """Open a queued request of `owner`, or of the member that is named."""
    from tests.unit.adminapi.record import open_request

    def make(*, by: Member | None = None, **fields: Any) -> InferenceRequest:
        return open_request((by or owner).caller, **fields)

    return make


@pytest.fixture
def console(staff: User) -> Client:
    """Signed in as staff who may do everything."""
    from tests.unit.adminapi.record import signed_in

    return signed_in(staff)


@pytest.fixture
def viewer(db: None) -> Client:
    """Signed in as staff who may look at requests and aborts, and stop nothing."""
    from tests.unit.adminapi.record import signed_in, staff_with

    return signed_in(staff_with("viewer", "ledger.view_inferencerequest", "ledger.view_abort"))
