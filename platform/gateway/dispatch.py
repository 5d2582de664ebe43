"""Background work on its way to an engine: from its row to a submission that nobody waits for.

The row is the queue of record, the Celery task only carries it on; whatever is lost on the way,
the sweep starts again. All of it may happen twice: the compare-and-set lets one placement win,
and an engine takes a request once. Runs in tasks, never in an event loop.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from accounts.callers import Caller
from gateway.orders import Order, response_order
from gateway.relay import Relay
from inference.bus import client as bus
from inference.errors import EngineError, HaltlineError
from inference.generation import AbortCause
from inference.lifecycle import UNDISPATCHED, State, Trigger
from inference.wire import AbortInfo, Accepted, Rejected, RequestKey, Submit
from ledger import services
from ledger.models import LIVE_STATES, InferenceRequest, Replica
from ledger.specs import SUBMIT_WITHIN

logger = logging.getLogger(__name__)

ACTOR = "tasks:dispatch"
ASK_SECONDS = 2.0
SUBMIT_SECONDS = 5.0
# The sweep's: how long the task itself may be busy with a request, and how many it starts again.
OVERDUE = timedelta(seconds=10)
AT_ONCE = 200
# A deadline that has passed on the way is still one for the engine.
_LEAST_SECONDS = 0.001
_UNDISPATCHED = sorted(state.value for state in UNDISPATCHED)


def dispatch_soon(request_id: str, *, attempt: int = 0, after: float = 0.0) -> None:
    """`after` seconds from now. Never raises for a broker that is away: the sweep repairs that."""
    from gateway.tasks import response_submit  # the tasks stand above this

    options: dict[str, Any] = {"countdown": after, "retry": False}
    try:
        response_submit.apply_async(args=(request_id,), kwargs={"attempt": attempt}, **options)
    except (OperationalError, OSError) as problem:
        logger.warning("%s waits for the sweep: %s", request_id, problem)


def background_open(*, caller: Caller, order: Order, relay: Relay) -> InferenceRequest:
    """Record it and let a task carry it on; one that lies under a tombstone comes back aborted.

    Raises what `Relay.place` raises, so that nothing is taken that nobody serves, and what
    `request_receive` raises.
    """
    relay.place(order.model)
    row = services.request_receive(caller=caller, spec=order.new_request())
    if row.is_live:
        dispatch_soon(row.pk)
    return row


def request_dispatch(*, request_id: str) -> bool:
    """Place a background request and submit it. False: it needs another look.

    Also ends one whose deadline passed before an engine could take it.
    """
    row = InferenceRequest.objects.filter(pk=request_id).first()
    if row is None or not row.is_live:
        return True
    if State(row.state) not in UNDISPATCHED:
        return bool(row.prompt_token_count) or _is_too_late(row) or _submit(row)
    if _expired(row):
        return True
    replica = _replica_for(row)
    if replica is None:
        return False
    placed = services.request_advance(
        request_id=row.pk,
        generation=row.generation,
        trigger=Trigger.ENQUEUE,
        actor=ACTOR,
        fields={"replica": replica.pk, "epoch": replica.epoch},
    )
    if not placed:
        return True  # aborted meanwhile, or another task was quicker
    row.refresh_from_db()
    return _submit(row)


def requests_overdue(*, now: datetime | None = None) -> list[str]:
    """Ids of background requests that no task seems to carry on, the oldest first."""
    moment = now or timezone.now()
    waiting = InferenceRequest.objects.filter(
        kind=InferenceRequest.Kind.RESPONSE,
        state__in=LIVE_STATES,
        params__background=True,
    )
    nobody_s = Q(state__in=_UNDISPATCHED)
    is_late = Q(deadline_at__lt=moment) | Q(queue_deadline_at__lt=moment)
    overdue = Q(changed_at__lt=moment - OVERDUE) & (nobody_s | Q(prompt_token_count=0))
    found = waiting.filter(overdue | (nobody_s & is_late)).order_by("received_at")
    return list(found.values_list("pk", flat=True)[:AT_ONCE])


def _is_too_late(row: InferenceRequest) -> bool:
    """Its placement is so old that the ledger may have given it up."""
    latest = row.queued_at or row.changed_at
    return timezone.now() > latest + timedelta(seconds=SUBMIT_WITHIN)


def _expired(row: InferenceRequest) -> bool:
    now = timezone.now()
    if row.deadline_at is not None and row.deadline_at <= now:
        trigger, fields = Trigger.ABORT_CONFIRM, {"cause": AbortCause.DEADLINE.value}
    elif row.queue_deadline_at is not None and row.queue_deadline_at <= now:
        trigger, fields = Trigger.EXPIRE, {}
    else:
        return False
    return services.request_advance(
        request_id=row.pk, generation=row.generation, trigger=trigger, actor=ACTOR, fields=fields
    )


def _replica_for(row: InferenceRequest) -> Replica | None:
    """The least loaded engine that serves the model and answers, at the epoch that it tells."""
    running = Replica.objects.filter(model=row.model, state=Replica.State.RUNNING)
    for replica in sorted(running, key=_load):
        try:
            status = bus.ask(
                replica.bus_url, secret=settings.HALTLINE_BUS_SECRET, timeout=ASK_SECONDS
            )
        except (ConnectionError, OSError, HaltlineError) as problem:
            logger.info("%s takes nothing: %s", replica.pk, problem)
            continue
        if status.replica == replica.pk and status.model == row.model:
            replica.epoch = status.epoch
            return replica
    return None


def _load(replica: Replica) -> float:
    """Share of its slots that are taken or waited for, by its last heartbeat."""
    load: dict[str, int] = replica.load
    return (load.get("running", 0) + load.get("waiting", 0)) / max(1, load.get("total_slots", 1))


def _submit(row: InferenceRequest) -> bool:
    replica = Replica.objects.filter(pk=row.replica).first()
    if replica is None:
        return False
    try:
        verdict = _handed_over(row, replica.bus_url)
    except (ConnectionError, OSError) as problem:
        logger.warning("%s: replica %s: %s", row.pk, replica.pk, problem)
        return False
    if isinstance(verdict, Rejected):
        _record_refusal(row, verdict.code, verdict.message)
    elif verdict.epoch == row.epoch:
        services.request_accepted(
            request_id=row.pk,
            generation=row.generation,
            prompt_tokens=sum(verdict.prompt_tokens),
        )
    else:
        _take_back(row, replica.bus_url)
    return True


def _handed_over(row: InferenceRequest, url: str) -> Accepted | Rejected:
    """One that is being aborted is submitted too, after its abort: the engine ends it at once."""
    secret = settings.HALTLINE_BUS_SECRET
    key = RequestKey(row.pk, row.generation)
    if State(row.state) is State.ABORTING:
        info = AbortInfo(
            id=row.abort_id or None,
            cause=AbortCause(row.cause),
            reason=row.reason or None,
        )
        bus.abort(url, keys=[key], info=info, secret=secret, timeout=SUBMIT_SECONDS)
    return bus.submit(url, submission=submission_of(row), secret=secret, timeout=SUBMIT_SECONDS)


def _take_back(row: InferenceRequest, url: str) -> None:
    """The engine was started anew in between: the record waits for one that is gone."""
    info = AbortInfo(cause=AbortCause.SHUTDOWN)
    key = RequestKey(row.pk, row.generation)
    bus.abort(
        url, keys=[key], info=info, secret=settings.HALTLINE_BUS_SECRET, timeout=SUBMIT_SECONDS
    )


def _record_refusal(row: InferenceRequest, code: str, message: str) -> None:
    services.request_advance(
        request_id=row.pk,
        generation=row.generation,
        trigger=Trigger.REJECT,
        actor=ACTOR,
        fields={"error_code": code or EngineError.code, "error_message": message},
    )


def order_of(row: InferenceRequest) -> Order:
    """What was asked for, from the record."""
    fields = {**row.params, **row.prompt[0], "model": row.model}
    if "logit_bias" in fields:  # JSON has no other keys than strings
        fields["logit_bias"] = {int(name): bias for name, bias in fields["logit_bias"].items()}
    return response_order(fields, client_id=row.client_id)


def submission_of(row: InferenceRequest) -> Submit:
    """For nobody's connection; its deadlines count from when it was received."""
    key = RequestKey(row.pk, row.generation)
    message = order_of(row).submission(key, owner=str(row.owner_id), priority=row.priority)
    return msgspec.structs.replace(
        message,
        attached=False,
        deadline=_seconds_to(row.deadline_at),
        queue_deadline=_seconds_to(row.queue_deadline_at),
    )


def _seconds_to(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return max(_LEAST_SECONDS, (moment - timezone.now()).total_seconds())
