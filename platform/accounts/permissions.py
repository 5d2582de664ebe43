"""What a route asks of its caller, for DRF. Whose objects it may touch, the services decide."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.callers import Caller


class CallerPermission(BasePermission):
    """Base: somebody called, and `allows` says yes."""

    def has_permission(self, request: Request, view: Any) -> bool:  # noqa: ARG002 (DRF's signature)
        return isinstance(request.auth, Caller) and self.allows(request.auth)

    def allows(self, caller: Caller) -> bool:
        raise NotImplementedError


class CanInfer(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.may_infer


class CanOperate(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.operates


class CanRead(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.may_read


class CanAbort(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.may_abort


class CanReadAborts(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return bool(caller.scopes) or caller.sees_aborts


class CanSeeReplicas(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.may_see_replicas


class CanControl(CallerPermission):
    def allows(self, caller: Caller) -> bool:
        return caller.may_control
