"""Who is calling and what that allows: one value that views, consumers and services pass on.

It does not know how the caller proved who it is (see `accounts.authentication`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from django.contrib.auth.models import User

VIEW_REQUESTS = "ledger.view_inferencerequest"
VIEW_ABORTS = "ledger.view_abort"
VIEW_REPLICAS = "ledger.view_replica"
ABORT_REQUESTS = "ledger.abort_inferencerequest"
CONTROL_REPLICAS = "ledger.control_replica"


class Scope(StrEnum):
    """`infer`: submit, see and abort one's own. `operate`: see and abort all; replicas."""

    INFER = "infer"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`actor` is what the record keeps: `key:<name>` or `user:<name>`.

    `permissions` are a staff user's Django permissions; a key has scopes instead.
    `key_id` is the public prefix of the key, never the secret.
    """

    actor: str
    owner_id: int | None
    scopes: frozenset[Scope] = frozenset()
    max_priority: int = 0
    user: User | None = None
    key_id: str | None = None
    permissions: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def operates(self) -> bool:
        return Scope.OPERATE in self.scopes

    @property
    def may_infer(self) -> bool:
        return Scope.INFER in self.scopes and self.owner_id is not None

    @property
    def sees_all(self) -> bool:
        return self.operates or VIEW_REQUESTS in self.permissions

    @property
    def may_read(self) -> bool:
        return bool(self.scopes) or VIEW_REQUESTS in self.permissions

    @property
    def sees_aborts(self) -> bool:
        return self.operates or VIEW_ABORTS in self.permissions

    @property
    def may_abort_all(self) -> bool:
        return self.operates or ABORT_REQUESTS in self.permissions

    @property
    def may_abort(self) -> bool:
        return Scope.INFER in self.scopes or self.may_abort_all

    @property
    def may_see_replicas(self) -> bool:
        return self.operates or VIEW_REPLICAS in self.permissions

    @property
    def may_control(self) -> bool:
        return self.operates or CONTROL_REPLICAS in self.permissions
