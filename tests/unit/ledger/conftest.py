from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.ledger.desk import Submit


@pytest.fixture
def submit(db: None) -> Submit:
    """Open a request for a member; `placement=None` holds it."""
    from tests.unit.ledger.desk import submitted

    return submitted
