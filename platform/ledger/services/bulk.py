"""Many rows, each with its own values, in one go: the ORM would compile a statement for each.

PostgreSQL gets one statement for all of them; SQLite runs a prepared one for each, which costs it
less. Knows columns and nothing of what they mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from django.db import connection
from django.db.models import Field, Model

Columns: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = list[list[Any]]
Names: TypeAlias = tuple[str, ...]


def rows_update(
    model: type[Model], updates: Sequence[tuple[Columns, Columns]], *, what: str
) -> None:
    """Each pair: what a row must be, the new values of its columns. Whole or an error.

    Raises `RuntimeError` if a row was not what it had to be; the caller's transaction ends then.
    """
    alike: dict[tuple[Names, Names], Rows] = defaultdict(list)
    for condition, values in updates:
        names = tuple(sorted(values)), tuple(sorted(condition))
        alike[names].append(_prepared(model, values) + _prepared(model, condition))
    run = _update_at_once if connection.vendor == "postgresql" else _update_each
    for (changed, compared), rows in alike.items():
        if run(model, changed, compared, rows) != len(rows):
            raise RuntimeError(f"{what} changed under their lock; nothing was written")


def _update_each(model: type[Model], changed: Names, compared: Names, rows: Rows) -> int:
    sets = ", ".join(f"{_column(model, name)} = %s" for name in changed)
    where = " AND ".join(f"{_column(model, name)} = %s" for name in compared)
    with connection.cursor() as cursor:
        sql = f"UPDATE {_table(model)} SET {sets} WHERE {where}"  # noqa: S608 - our own names
        cursor.executemany(sql, rows)
        return int(cursor.rowcount)


def _update_at_once(model: type[Model], changed: Names, compared: Names, rows: Rows) -> int:
    """The first row of values says of which types they are."""
    sets = ", ".join(f"{_column(model, name)} = v.c{at}" for at, name in enumerate(changed))
    where = " AND ".join(
        f"t.{_column(model, name)} = v.c{at}" for at, name in enumerate(compared, len(changed))
    )
    names = (*changed, *compared)
    typed = ", ".join(f"%s::{_type(model, name)}" for name in names)
    plain = ", ".join(["%s"] * len(names))
    values = ", ".join(f"({typed})" if at == 0 else f"({plain})" for at in range(len(rows)))
    columns = ", ".join(f"c{at}" for at in range(len(names)))
    with connection.cursor() as cursor:
        sql = (
            f"UPDATE {_table(model)} AS t SET {sets} "  # noqa: S608 - our own names
            f"FROM (VALUES {values}) AS v({columns}) WHERE {where}"
        )
        cursor.execute(sql, [value for row in rows for value in row])
        return int(cursor.rowcount)


def rows_insert(model: type[Model], rows: Sequence[Model]) -> None:
    """Rows whose keys the database makes. They are not told them here."""
    if connection.vendor == "postgresql":
        model._default_manager.bulk_create(rows)
        return
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    names = ", ".join(_column(model, field.name) for field in fields)
    places = ", ".join(["%s"] * len(fields))
    values = [[_value(field, getattr(row, field.attname)) for field in fields] for row in rows]
    with connection.cursor() as cursor:
        sql = f"INSERT INTO {_table(model)} ({names}) VALUES ({places})"  # noqa: S608 - our own names
        cursor.executemany(sql, values)


def _prepared(model: type[Model], values: Columns) -> list[Any]:
    return [_value(_field(model, name), values[name]) for name in sorted(values)]


def _value(field: Field[Any, Any], value: Any) -> Any:
    return field.get_db_prep_save(value, connection)


def _field(model: type[Model], name: str) -> Field[Any, Any]:
    found: Field[Any, Any] = model._meta.get_field(name)  # type: ignore[assignment]
    return found


def _type(model: type[Model], name: str) -> str:
    """Without a length: a cast would cut what a column refuses."""
    return str(_field(model, name).cast_db_type(connection)).partition("(")[0]


def _column(model: type[Model], name: str) -> str:
    return connection.ops.quote_name(str(_field(model, name).column))


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)
