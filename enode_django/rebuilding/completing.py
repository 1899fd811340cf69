"""Making the secondary indexes and foreign keys that a shadow was loaded without.

Each is made in its own transaction, and existing ones are skipped, so the work continues after a restart of the server.
A foreign key is added without checking the rows, which blocks writers of the other table for a moment only, and is
validated afterwards, which does not block them.

An aggregate whose rows violate a foreign key is taken back and replayed with the key in place, as workers would handle
it: it is parked at the event that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import models, transaction

from enode_django.concurrency.backoff import within
from enode_django.databases import execute
from enode_django.eventstore import sqlstates
from enode_django.exceptions import RebuildError
from enode_django.jobs.progress import Report
from enode_django.rebuilding.catching_up import CatchingUp
from enode_django.rebuilding.clearing import shortly
from enode_django.rebuilding.comparing import Generation, reached
from enode_django.rebuilding.definitions import Constraint, Table, describe, quoted, search_path
from enode_django.rebuilding.late import NOT_VALID, is_checked, late_indexes, late_keys
from enode_django.rebuilding.making import foreign_key, index, run
from enode_django.rebuilding.meanings import escaped, is_attributed, meaning
from enode_django.rebuilding.replaying import Todo, replayer
from enode_django.rebuilding.retrying import take_back
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.swapping import check_alike
from enode_django.rebuilding.target import Target

PATIENCE = 600.0
"""Seconds to wait for locks, and for a server that restarts: a rebuild that fails this late loses much work."""
ROUNDS = 10
"""Attempts to validate a foreign key: taking an aggregate back may leave rows of others that point to nothing."""
FOREIGN_KEY_VIOLATION = "23503"

_KEY = """
    SELECT confrelid::regclass::text, confmatchtype = 'f',
           ARRAY(SELECT quote_ident(attname) FROM unnest(conkey) WITH ORDINALITY AS key (number, place)
                 JOIN pg_attribute ON attrelid = conrelid AND attnum = key.number ORDER BY place),
           ARRAY(SELECT quote_ident(attname) FROM unnest(confkey) WITH ORDINALITY AS key (number, place)
                 JOIN pg_attribute ON attrelid = confrelid AND attnum = key.number ORDER BY place)
    FROM pg_constraint WHERE conname = %s AND conrelid = to_regclass(%s)
"""


def complete(target: Target, catching_up: CatchingUp, *, keys_only: bool = False) -> None:
    """Make the indexes and foreign keys that the shadow lacks, and check that its tables are like those in use. Blocks.
    ``keys_only`` is for replaced tables, which have lost their foreign keys alone: another index was added meanwhile.

    Raises `RebuildError` if more aggregates violate a foreign key than may be parked, or if the tables in use were
    altered; `TablesInUse`; and as `Replayer` does.
    """
    completing = _Completing(target, catching_up.shadow, catching_up.report, keys_only)
    with replayer(catching_up.shadow, within(PATIENCE)) as replaying:
        replaying.persisted(completing.run)
    with transaction.atomic(using=target.alias):
        check_alike(target, catching_up.shadow)
    taken_back = completing.taken_back
    catching_up.reach([Todo(id, "", version) for id, version in taken_back.items()])


class _Completing:
    """Completes a shadow. ``taken_back`` has the versions up to which aggregates are to be replayed."""

    def __init__(self, target: Target, shadow: Shadow, report: Report, keys_only: bool) -> None:
        self.taken_back: dict[str, int] = {}
        self._target = target
        self._shadow = shadow
        self._report = report
        self._keys_only = keys_only

    def run(self) -> None:
        """Make what is missing. Can be repeated after a failure."""
        used = self._target.described()
        with self._shadow.opened():
            made = describe(self._target.alias, self._target.tables)
        both = [(used[name], made[name]) for name in self._target.tables if name in used and name in made]
        if not self._keys_only:
            for pair in both:
                self._make_indexes(*pair)
        known = {table.oid: table for table in used.values()}
        for pair in both:
            self._make_keys(*pair, known)

    def _make_indexes(self, used: Table, made: Table) -> None:
        there = {one.name for one in made.indexes}
        for one in late_indexes(used):
            if one.name not in there:
                self._report("make indexes", table=used.name, index=one.name)
                self._step(index(self._shadow.schema, used, one))

    def _make_keys(self, used: Table, made: Table, known: Mapping[int, Table]) -> None:
        there = {one.name: one for one in made.constraints}
        for key in late_keys(used):
            if key.name not in there:
                self._report("make foreign keys", table=used.name, foreign_key=key.name)
                suffix = NOT_VALID if is_checked(key) else ""
                self._step(foreign_key(self._shadow.schema, used, key, known, suffix))
            if is_checked(key) and not (key.name in there and is_checked(there[key.name])):
                self._validate(used, key)

    def _step(self, statements: Iterator[str]) -> None:
        shortly(self._shadow, partial(run, self._target.alias, list(statements)))

    # -- rows that violate a foreign key --------------------------------------------------------------------------

    def _validate(self, table: Table, key: Constraint) -> None:
        place = quoted(self._shadow.schema, table.name)
        for _ in range(ROUNDS):
            try:
                self._step(iter([f"ALTER TABLE {place} VALIDATE CONSTRAINT {quoted(key.name)}"]))
                return
            except RebuildError as error:
                if error.__cause__ is None or sqlstates.sqlstate(error.__cause__) != FOREIGN_KEY_VIOLATION:
                    raise
                self._take_back(_Broken(table, key, _told(error.__cause__)))
        raise RebuildError(
            f"the foreign key {key.name} of {table.name} is broken by other rows whenever the aggregates whose rows "
            f"break it are taken back: correct the handlers of {self._target.name}"
        )

    def _take_back(self, broken: _Broken) -> None:
        ids = self._breaking(broken)
        self.taken_back |= self._versions([id for id in ids if id not in self.taken_back])
        most = self._shadow.max_failures
        if not ids or (most is not None and len(self.taken_back) > most):
            raise RebuildError(
                f"the rows of {self._target.name} cannot be put into use: {broken.text}; this holds for the rows of "
                f"{len(self.taken_back) or 'some'} aggregates or more; correct its handlers, or the other table"
            )
        take_back(self._target, self._shadow, ids)

    def _breaking(self, broken: _Broken) -> list[str]:
        """Return the aggregates whose rows break the key, at most one more than may be parked; none if unattributed."""
        model = next(one for one in self._target.written if one._meta.db_table == broken.table.name)
        if not all(is_attributed(self._target, one) for one in self._target.written):
            return []
        most = self._shadow.max_failures
        query = self._query(broken, model)
        found = execute(self._target.alias, f"{query} LIMIT %s", (None if most is None else most + 1,))
        return [id for (id,) in found.fetchall() if id is not None]

    def _query(self, broken: _Broken, model: type[models.Model]) -> str:
        rows = meaning(self._target, model, Generation.of(self._shadow).place)
        condition = _condition(*self._columns(broken))
        return f"SELECT DISTINCT {rows.whose}::text FROM {rows.tables} WHERE {condition}"

    def _columns(self, broken: _Broken) -> Any:
        alias, place = self._target.alias, quoted(self._shadow.schema, broken.table.name)
        with transaction.atomic(using=alias), search_path(alias, ""):
            return execute(alias, _KEY, (broken.key.name, place)).fetchone()

    def _versions(self, ids: Sequence[str]) -> dict[str, int]:
        with self._shadow.opened():
            return dict(
                execute(self._target.alias, *reached(self._target, Generation.of(self._shadow), ids)).fetchall()
            )


class _Broken(NamedTuple):
    """A violated foreign key, and PostgreSQL's text about one of the rows."""

    table: Table
    key: Constraint
    text: str


def _condition(other: str, is_full: bool, columns: Sequence[str], others: Sequence[str]) -> str:
    """Return a condition that is true for a row, called ``row``, that violates a foreign key. With ``is_full``, a key
    that is partly null violates it, too.

    >>> print(_condition("public.t", False, ["a"], ["id"]))
    row.a IS NOT NULL AND NOT EXISTS (SELECT FROM public.t AS pointed_at WHERE pointed_at.id = row.a)
    """
    equal = " AND ".join(f"pointed_at.{there} = row.{here}" for here, there in zip(columns, others, strict=True))
    missing = f"NOT EXISTS (SELECT FROM {other} AS pointed_at WHERE {equal})"
    joint = " OR " if is_full else " AND "
    given = joint.join(f"row.{column} IS NOT NULL" for column in columns)
    return escaped(f"({given}) AND {missing}" if len(columns) > 1 else f"{given} AND {missing}")


def _told(error: BaseException) -> str:
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    return f"{sqlstates.message(error)}: {detail}" if detail else sqlstates.message(error)
