"""Comparison of two generations of a projection's tables, row by row, for aggregates at the same version in both.

A comparison reads both generations in one snapshot, without volatile fields; for surrogate keys see `meanings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import groupby, product, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections, models, transaction

from enode_django.databases import execute, lift_statement_timeout
from enode_django.eventing.checkpoints import CHECKPOINT
from enode_django.eventing.projections import ModelProjection
from enode_django.exceptions import RebuildError, shown
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.failed import FailedAggregate
from enode_django.rebuilding.making import literal
from enode_django.rebuilding.meanings import Meaning, escaped, is_attributed, meaning
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target

EXAMPLES = 20

_REACHED = f"SELECT aggregate_root_id, version FROM {CHECKPOINT} "
_REACHED += "WHERE subscriber = %s AND generation = %s AND version > 0 AND "
_COMPARE = """
    WITH reached AS MATERIALIZED (
        SELECT aggregate_root_id, one_reached.version IS NOT DISTINCT FROM other_reached.version AS is_equal
        FROM ({one_reached}) AS one_reached FULL JOIN ({other_reached}) AS other_reached USING (aggregate_root_id)
    ),
    {suspects}
    one AS (SELECT {one.name}::text AS id, {one.fields} AS fields FROM {one.tables} {one_wanted}),
    other AS (SELECT {other.name}::text AS id, {other.fields} AS fields FROM {other.tables} {other_wanted}),
    different AS (
        (SELECT false AS is_other, * FROM (SELECT * FROM one EXCEPT ALL SELECT * FROM other) AS only_one)
        UNION ALL (SELECT true, * FROM (SELECT * FROM other EXCEPT ALL SELECT * FROM one) AS only_other WHERE %s)
    )
    SELECT (SELECT count(*) FROM reached WHERE is_equal), (SELECT count(*) FROM reached WHERE NOT is_equal),
           (SELECT coalesce(sum(CASE WHEN id IS NULL THEN ones + others ELSE greatest(ones, others) END), 0)::bigint
            FROM (
               SELECT id, count(*) FILTER (WHERE NOT is_other) AS ones, count(*) FILTER (WHERE is_other) AS others
               FROM different GROUP BY id
           ) AS per_aggregate),
           ARRAY(SELECT jsonb_build_array(is_other, id, fields)::text FROM different
                 ORDER BY id, row_number() OVER (PARTITION BY id, is_other ORDER BY fields), is_other
                 LIMIT {rows})
"""

# Rows of the same bytes are equal, and comparing bytes costs a fraction of building and hashing JSON. So JSON is only
# built for aggregates with other rows.
_SUSPECTS = """
    suspects AS MATERIALIZED (
        SELECT unnest(ARRAY[coalesce(ones.id, ''), coalesce(others.id, '')]) AS id
        FROM (SELECT {key}, {one.whose} AS id, ROW(row.*) AS fields FROM {one.tables}) AS ones
        FULL JOIN (SELECT {key}, {other.whose} AS id, ROW(row.*) AS fields FROM {other.tables}) AS others
        USING ({names})
        WHERE (ones.fields *= others.fields) IS NOT TRUE
    ),
"""
_SAME_COLUMNS = """
    SELECT count(DISTINCT columns) = 1 FROM (
        SELECT array_agg((attname, atttypid) ORDER BY attnum) AS columns FROM pg_attribute
        WHERE attrelid IN ({one}::regclass, {other}::regclass) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid
    ) AS tables
"""
# Leaves out aggregates at different versions, but keeps rows of unknown aggregates.
_NOT_APART = "WHERE NOT EXISTS (SELECT FROM reached WHERE aggregate_root_id = {whose} AND NOT is_equal)"
_SUSPECT = " AND coalesce({whose}, '') IN (SELECT id FROM suspects)"
_EQUAL = "WHERE {whose} IN (SELECT aggregate_root_id FROM reached WHERE is_equal)"

_LAGS = """
    SELECT aggregate_root_id, coalesce(one.version, 0), other.version
    FROM ({other_reached}) AS other LEFT JOIN ({one_reached}) AS one USING (aggregate_root_id)
    WHERE {differs} ORDER BY aggregate_root_id
"""
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"


class Generation(NamedTuple):
    """A generation of a projection's tables. ``schema`` is empty for the tables in use."""

    schema: str
    number: int

    @classmethod
    def of(cls, shadow: Shadow) -> Generation:
        return cls(shadow.schema, shadow.generation)

    def place(self, table: str) -> str:
        """Return the table's quoted name, with `%` doubled for parameterised statements."""
        return (quoted(self.schema, table) if self.schema else quoted(table)).replace("%", "%%")


class Difference(NamedTuple):
    """A row that differs: its fields by name in each generation, None where the generation lacks it. ``row`` is the
    aggregate or the key that it belongs to (None: unknown)."""

    table: str
    row: str | None
    one: Mapping[str, Any] | None
    other: Mapping[str, Any] | None

    def text(self, one: str, other: str) -> str:
        whose = f" of {self.row}" if self.row is not None else ""
        if self.one is None or self.other is None:
            where, fields = (other, self.other) if self.one is None else (one, self.one)
            return f"{self.table}{whose}: only {where} {shown(fields)}"
        changes = [
            f"{name}: {one} {_value(self.one, name)}, {other} {_value(self.other, name)}"
            for name in sorted(self.one.keys() | self.other.keys())
            if name not in self.one or name not in self.other or self.one[name] != self.other[name]
        ]
        return f"{self.table}{whose}: {'; '.join(changes)}"


def _value(fields: Mapping[str, Any], name: str) -> str:
    return shown(fields[name]) if name in fields else "has no such column"


class Lag(NamedTuple):
    """An aggregate at different versions in two generations; version 0 if ``one`` does not have it."""

    aggregate_root_id: str
    one: int
    other: int

    def text(self, one: str, other: str) -> str:
        return f"{self.aggregate_root_id}: {one} up to version {self.one}, {other} up to version {self.other}"


class Comparison(NamedTuple):
    """The result of a comparison of two generations.

    ``compared`` is the number of aggregates at the same version in both, ``apart`` that of the others. ``rows`` is the
    number of differing rows, some of them in ``examples``; a row that both have with different fields counts once.
    ``undecided`` are the tables that could not be compared. ``behind`` are the aggregates that ``one`` cannot bring to
    the version of the other. ``uncompared`` are the aggregates whose rows in the other were not compared. ``failed``
    are the aggregates that failed in ``one``, also those that ``other`` has not handled further.
    """

    compared: int
    apart: int
    rows: int
    examples: Sequence[Difference]
    undecided: Sequence[str] = ()
    behind: Sequence[Lag] = ()
    uncompared: Sequence[str] = ()
    failed: Sequence[FailedAggregate] = ()

    @property
    def is_equal(self) -> bool:
        """True if no difference is known."""
        return not (self.rows or self.behind)

    @property
    def is_whole(self) -> bool:
        """True if everything was compared."""
        return not (self.undecided or self.uncompared)


@contextmanager
def one_moment(alias: str) -> Iterator[None]:
    """Run the queries of the block in one database snapshot, unless a transaction is open already."""
    is_outermost = not connections[alias].in_atomic_block
    with transaction.atomic(using=alias):
        if is_outermost:
            execute(alias, _ONE_MOMENT, ())
            lift_statement_timeout(alias)
        yield


def compare(
    target: Target,
    one: Generation,
    other: Generation,
    ids: Sequence[str] | None = None,
    *,
    models: Sequence[type[models.Model]] | None = None,
) -> Comparison:
    """Compare two generations, with ``ids`` only for these aggregates, with ``models`` only for their tables. With
    ``ids``, ``one`` must have no other aggregates.

    A table whose rows do not name one aggregate is compared as a whole. It is undecided unless all aggregates are at
    the same version in both. With ``ids``, only rows that ``other`` lacks count as different.
    """
    compared, apart, rows = 0, 0, 0
    examples: list[Difference] = []
    undecided: list[str] = []
    with one_moment(target.alias):
        for model in target.written if models is None else models:
            has_key = is_attributed(target, model)
            exactly = ids is None or has_key  # otherwise ``other`` has rows of further aggregates
            compared, apart, count, texts = _asked(target, model, one, other, ids, exactly)
            if not has_key and apart and ids is None:
                undecided.append(model._meta.db_table)
                continue
            rows += count
            examples += paired(model._meta.db_table, map(loaded, texts))
    return Comparison(compared, apart, rows, examples[:EXAMPLES], undecided)


def _asked(
    target: Target, model: type[models.Model], one: Generation, other: Generation, ids: Sequence[str] | None,
    both_ways: bool,
) -> tuple[int, int, int, list[str]]:  # fmt: skip
    one_reached, one_parameters = reached(target, one, ids)
    other_reached, other_parameters = reached(target, other, ids)
    meanings = {"one": meaning(target, model, one.place), "other": meaning(target, model, other.place)}
    is_as_stored = (
        meanings["one"].is_as_stored
        and meanings["one"].whose is not None
        and ids is None
        and model._meta.managed  # else its key may not be unique, and a row too many would be equal to its twin
        and _have_same_columns(target.alias, model, one, other)
    )
    wanted = {f"{name}_wanted": _wanted(of, ids is None, is_as_stored) for name, of in meanings.items()}
    shown_as = {name: of._replace(whose=of.whose or "NULL") for name, of in meanings.items()}
    statement = _COMPARE.format(
        **shown_as,
        **wanted,
        one_reached=one_reached,
        other_reached=other_reached,
        suspects=_SUSPECTS.format(**shown_as, **_key(model)) if is_as_stored else "",
        rows=2 * EXAMPLES,  # an example has up to two; the last row may lack its other one, but is no example then
    )
    found = execute(target.alias, statement, (*one_parameters, *other_parameters, both_ways)).fetchone()
    assert found is not None
    return found[0], found[1], found[2], found[3]


def _have_same_columns(alias: str, model: type[models.Model], one: Generation, other: Generation) -> bool:
    """Return True unless one of the tables was altered since the other one was made like it."""
    one_table, other_table = (literal(generation.place(model._meta.db_table)) for generation in (one, other))
    (found,) = execute(alias, _SAME_COLUMNS.format(one=one_table, other=other_table), ()).fetchall()
    return bool(found[0])


def _key(model: type[models.Model]) -> dict[str, str]:
    """Return the columns of a row's primary key, and the names that they get: their own may be ``id`` or ``fields``."""
    names = [f"key_{number}" for number, _ in enumerate(model._meta.pk_fields)]
    columns = [f"row.{escaped(quoted(str(field.column)))}" for field in model._meta.pk_fields]
    return {"names": ", ".join(names), "key": ", ".join(map("{} AS {}".format, columns, names))}


def _wanted(of: Meaning, are_all: bool, is_as_stored: bool) -> str:
    if of.whose is None:
        return ""
    if not are_all:
        return _EQUAL.format(whose=of.whose)
    return (_NOT_APART + (_SUSPECT if is_as_stored else "")).format(whose=of.whose)


def lagging(target: Target, one: Generation, other: Generation, ids: Sequence[str] | None = None) -> list[Lag]:
    """Return the aggregates, of all or of ``ids``, in which ``one`` is behind ``other``."""
    return _lags("other.version > coalesce(one.version, 0)", target, one, other, ids)


def apart(target: Target, one: Generation, other: Generation, ids: Sequence[str] | None = None) -> list[Lag]:
    """Return the aggregates of ``other``, of all or of ``ids``, in which ``one`` is behind or ahead."""
    return _lags("other.version IS DISTINCT FROM one.version", target, one, other, ids)


def _lags(differs: str, target: Target, one: Generation, other: Generation, ids: Sequence[str] | None) -> list[Lag]:
    one_reached, one_parameters = reached(target, one, ids)
    other_reached, other_parameters = reached(target, other, ids)
    statement = _LAGS.format(differs=differs, one_reached=one_reached, other_reached=other_reached)
    return [Lag(*found) for found in execute(target.alias, statement, (*other_parameters, *one_parameters)).fetchall()]


def reached(target: Target, generation: Generation, ids: Sequence[str] | None = None) -> tuple[str, tuple[Any, ...]]:
    """Return a statement for the version of each aggregate, with ``ids`` only of these, and its parameters."""
    wanted = "true" if ids is None else "aggregate_root_id = ANY(%s)"
    chosen = () if ids is None else (list(ids),)
    parameters = (target.key, generation.number, *chosen)
    if not isinstance(target.subscriber, ModelProjection):
        return _REACHED + wanted, parameters
    table = generation.place(target.subscriber.model._meta.db_table)
    rows = f"SELECT aggregate_root_id, version FROM {table} WHERE {wanted}"
    return f"{rows} UNION ALL {_REACHED}{wanted}", (*chosen, *parameters)


def check_volatile(target: Target) -> None:
    """Raise `RebuildError` if no model has a field that the projection names volatile."""
    known = {field.name for one in target.written for field in one._meta.concrete_fields}
    for name in target.subscriber.volatile:
        if name not in known:
            raise RebuildError(f"{target.name} calls {name!r} volatile, but none of its models has such a field")


class _Number(NamedTuple):
    """A number of JSON with all its digits. As in PostgreSQL, it equals numbers of its value and no boolean."""

    value: Decimal

    def __repr__(self) -> str:
        return f"{self.value:f}"


def loaded(text: str) -> Any:
    """Return a value of JSON, with all digits of its numbers."""
    return json.loads(text, parse_float=_number, parse_int=_number)


def _number(text: str) -> _Number:
    return _Number(Decimal(text))


def paired(table: str, found: Iterable[Sequence[Any]]) -> Iterator[Difference]:
    """Pair rows that only one or only the other generation has: a pair is one changed row. ``found`` has for each
    whether it is the other's, its name and its fields, sorted by name. Pure."""
    for id, rows in groupby(found, key=itemgetter(1)):
        sides: tuple[list[Any], list[Any]] = ([], [])
        for is_other, _, fields in rows:
            if id is None:  # rows without an aggregate cannot be paired
                yield Difference(table, None, *((None, fields) if is_other else (fields, None)))
            else:
                sides[is_other].append(fields)
        yield from (Difference(table, id, one, other) for one, other in _most_alike_first(*sides))


def _most_alike_first(ones: list[Any], others: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of rows, the most alike first, and then what is left, with None. Empties the lists."""
    while ones and others:
        one, other = max(product(ones, others), key=_equal_fields)
        ones.remove(one)
        others.remove(other)
        yield one, other
    yield from zip_longest(ones, others)


def _equal_fields(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> int:
    one, other = pair
    return sum(name in other and other[name] == value for name, value in one.items())
