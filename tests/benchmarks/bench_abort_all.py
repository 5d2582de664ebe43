"""`abort_all` over many queued requests: the answer, the way to the engine, the receipts.

`python -m tests.benchmarks.bench_abort_all [--sizes 10,100,1000,10000] [--ended 0] [--plans]`

Prints, per size, milliseconds of the call itself with its answer (`abort_open`, the keys for the
engine, the receipt), of moving the rows (`abort_review`, what the task does), of recording what
the engine confirms in batches of 200, and microseconds per target of all three together. Each
size has a database of its own: SQLite in a temporary home, or the one that DATABASE_URL names,
whose rows are deleted first (name a database of your own). `--ended` puts that many ended
requests beside them; `--plans` prints how the database finds what the statements look for.
Pushes go through the embedded broker.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BATCH = 200
Clock = Callable[[str], Any]


def prepare(home: str) -> None:
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "platform"))
    for name in [name for name in os.environ if name.startswith("HALTLINE_")]:
        del os.environ[name]
    os.environ |= {"HALTLINE_HOME": home, "DJANGO_SETTINGS_MODULE": "haltline.settings"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def fill(count: int, *, ended: int) -> Any:
    """Queued requests as `request_open` leaves them, and the caller who may stop them."""
    from django.apps import apps
    from django.core.management.color import no_style
    from django.db import connection
    from django.utils import timezone

    from ledger import ids, models
    from tests.cast import member

    configs = [apps.get_app_config(name) for name in ("accounts", "ledger")]
    tables = [model._meta.db_table for config in configs for model in config.get_models()]
    flush = connection.ops.sql_flush(no_style(), tables, allow_cascade=True)
    connection.ops.execute_sql_flush(flush)
    operator = member("bench", owner_name="bench", scopes=("infer", "operate"))
    now = timezone.now()
    rows = [
        models.InferenceRequest(
            id=ids.request_id_new(),
            owner_id=operator.owner.pk,
            submitted_by="key:bench",
            kind="completion",
            model="tiny",
            prompt=["Say hello."],
            state="queued" if number < count else "finished",
            replica="r0",
            epoch="e1",
            web="w",
            transition_seq=2,
            received_at=now,
            queued_at=now,
            changed_at=now,
        )
        for number in range(count + ended)
    ]
    models.InferenceRequest.objects.bulk_create(rows, batch_size=500)
    models.Choice.objects.bulk_create(
        [models.Choice(request=row, index=0) for row in rows], batch_size=500
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return operator.caller, [row.pk for row in rows[:count]]


def confirmations(request_ids: list[str], abort_id: str) -> Iterator[list[Any]]:
    """What the engine tells of them: each its own moment."""
    from inference.events import ChoiceEnd, RequestEvent, TimelineEntry
    from inference.generation import AbortCause, FinishReason
    from inference.lifecycle import Trigger
    from inference.wire import AbortInfo, RequestKey

    info = AbortInfo(id=abort_id, cause=AbortCause.API, reason="bench")
    end = ChoiceEnd(index=0, finish_reason=FinishReason.ABORT, abort=info)
    events = [
        RequestEvent(
            key=RequestKey(pk, 1),
            replica="r0",
            epoch="e1",
            timeline=[
                TimelineEntry(seq=1, at=time.time(), trigger=Trigger.ABORT_CONFIRM, choice_end=end)
            ],
            prompt_tokens=5,
        )
        for pk in request_ids
    ]
    return (events[start : start + BATCH] for start in range(0, len(events), BATCH))


@contextmanager
def timed(into: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    into[name] = time.perf_counter() - began


def measure(count: int, *, ended: int) -> dict[str, float]:
    from django.db import reset_queries

    from ledger import services
    from ledger.models import Abort, InferenceRequest
    from ledger.selectors import abort_receipt

    caller, request_ids = fill(count, ended=ended)
    took: dict[str, float] = {}
    reset_queries()
    with timed(took, "answer"):
        abort = services.abort_open(caller=caller, everything=True, reason="bench")
        keys = services.abort_holders(abort=abort)
        receipt = abort_receipt(abort=abort)
    assert receipt["counts"]["targets"] == count == sum(map(len, keys.values()))
    with timed(took, "move"):
        services.abort_review(abort_id=abort.pk)
    batches = list(confirmations(request_ids, abort.pk))
    with timed(took, "settle"):
        for batch in batches:
            services.events_record(events=batch)
    assert Abort.objects.get().state == Abort.Status.DONE
    assert InferenceRequest.objects.filter(state="aborted").count() == count
    return took


def shape_of(sql: str) -> str:
    """The statement without its values."""
    return re.sub(r"\((?:'[^']*'|\d+)(?:, (?:'[^']*'|\d+))+\)|'[^']*'|\b\d+\b", "?", sql)


def show_plans() -> None:
    """Each kind of statement that ran, once, and how the database finds its rows."""
    from django.db import connection

    asked = [query["sql"].strip() for query in connection.queries_log]
    found = {
        shape_of(sql): sql for sql in asked if re.match("SELECT|UPDATE|(?s:INSERT.*SELECT)", sql)
    }
    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    for shape, sql in found.items():
        print(f"\n{re.sub('SELECT .*? FROM', 'SELECT … FROM', shape, count=1)[:400]}")
        with connection.cursor() as cursor:
            cursor.execute(explain + sql.replace("%", "%%"))
            for line in cursor.fetchall():
                print("    ", line[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="10,100,1000,10000")
    parser.add_argument("--ended", type=int, default=0)
    parser.add_argument("--plans", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="haltline-bench-") as home:
        prepare(home)
        from django.conf import settings
        from django.db import connection

        from haltline.broker import embedded_broker

        settings.ENV.home.prepare()
        with embedded_broker(settings.ENV):
            measure(10, ended=0)
            print(f"{connection.vendor}; {options.ended} ended requests beside")
            print(
                f"{'targets':>8} {'answer ms':>10} {'move ms':>9} {'settle ms':>10} {'us each':>8}"
            )
            for size in map(int, options.sizes.split(",")):
                took = measure(size, ended=options.ended)
                each = sum(took.values()) / size * 1e6
                ms = [took[name] * 1000 for name in ("answer", "move", "settle")]
                print(f"{size:>8}{ms[0]:>11.1f}{ms[1]:>10.1f}{ms[2]:>11.1f}{each:>9.0f}")
            if options.plans:
                connection.force_debug_cursor = True
                measure(1000, ended=options.ended)
                connection.force_debug_cursor = False
                show_plans()
        connection.close()


if __name__ == "__main__":
    main()
