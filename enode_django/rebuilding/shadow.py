"""Shadows: generations of a projection's tables that are not in use, on which its own code runs.

The tables lie in their own schema. In a transaction whose ``search_path`` is this schema alone, all code finds them
under the usual names, and no other tables: a projection cannot reach tables that it does not declare. The schema also
has three fittings under the names of this app's tables: a view of the checkpoints, a view of the generation, and a
table of parked events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

from django.db import connections, models, transaction

from enode_django.databases import execute
from enode_django.eventing.base_projections import BaseProjection, models_of
from enode_django.eventing.checkpoints import CHECKPOINT, PARKED, PROJECTION_GENERATION
from enode_django.eventing.projections import Projection
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import RebuildError
from enode_django.rebuilding.definitions import quoted, search_path
from enode_django.rebuilding.making import literal

_LONGEST_NAME = 63


class ReachesOutside(RebuildError):
    """A handler has queried another database. It is retriable only so that no aggregate is parked for it."""

    retriable = True


@contextmanager
def hooks_forgotten() -> Iterator[None]:
    """Discard the functions that the block passes to ``on_commit``, inside a transaction or not."""
    known: list[Any] = list(connections.all())
    before = [vars(connection).get("on_commit") for connection in known]
    for connection in known:
        connection.on_commit = _forget
    try:
        yield
    finally:
        for connection, hook in zip(known, before, strict=True):
            del connection.on_commit
            if hook is not None:
                connection.on_commit = hook


def _forget(hook: object, robust: bool = False) -> None: ...


@contextmanager
def _others_refuse(alias: str) -> Iterator[None]:
    """Let other databases refuse queries of the ORM. Raises `ReachesOutside` at the end if one was asked."""
    asked: list[str] = []

    def refuse(execute: object, statement: str, parameters: object, many: bool, context: Any) -> NoReturn:
        asked.append(context["connection"].alias)
        raise ReachesOutside(f"the database {asked[-1]!r}, where nothing of it is")

    with ExitStack() as stack:
        for connection in connections.all():
            if connection.alias != alias:
                stack.enter_context(connection.execute_wrapper(refuse))
        yield
    if asked:
        raise ReachesOutside(f"the database {asked[0]!r}, where nothing of it is")


class Shadow(NamedTuple):
    """The tables of a generation of ``subscriber`` that is not in use. Up to ``max_failures`` aggregates may be parked
    in it (None: any number)."""

    subscriber: str
    alias: str
    generation: int
    max_failures: int | None = None

    @property
    def schema(self) -> str:
        """The name of the schema, which no other subscriber or generation has.

        >>> Shadow("bank.Ledger", "default", 3).schema
        'enode_bank_ledger_a756f8_3'
        """
        digest = sha256(self.subscriber.encode()).hexdigest()[:6]
        end = f"_{digest}_{self.generation}".replace("-", "check_")
        name = re.sub("[^a-z0-9]+", "_", self.subscriber.lower())
        return f"enode_{name}"[: _LONGEST_NAME - len(end)] + end

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Run a transaction in which the tables of this generation are the projection's, and the only ones.

        Functions passed to ``on_commit`` are discarded, since nothing changes outside of the shadow. Raises
        `ReachesOutside` if another database was queried, even if the block has caught that error.
        """
        with (
            transaction.atomic(using=self.alias),
            search_path(self.alias, quoted(self.schema)),
            hooks_forgotten(),
            _others_refuse(self.alias),
        ):
            yield

    def make_schema(self) -> None:
        """Make the schema and its table of parked events. For use in a transaction with the usual ``search_path``."""
        execute(self.alias, f"CREATE SCHEMA {quoted(self.schema)}", None)
        parked = f"CREATE TABLE {quoted(self.schema, PARKED)} (LIKE {self._home()}.{PARKED} INCLUDING ALL)"
        execute(self.alias, parked, None)

    def make_views(self) -> None:
        """Make the views, before the shadow is opened. For use as `make_schema`. Views prevent altering this app's
        tables, so a shadow that is only kept for an undo has none."""
        checkpoints, generations = (quoted(self.schema, name) for name in (CHECKPOINT, PROJECTION_GENERATION))
        for statement in (
            f"CREATE OR REPLACE VIEW {checkpoints} AS SELECT * FROM {self._home()}.{CHECKPOINT}",
            f"CREATE OR REPLACE VIEW {generations} AS SELECT {literal(self.subscriber)}::varchar AS subscriber, "
            f"{self.generation}::bigint AS generation",
        ):
            execute(self.alias, statement, None)

    def _home(self) -> str:
        """Return the quoted schema of this app's tables."""
        found = execute(self.alias, _HOME, (CHECKPOINT,)).fetchone()
        return str(found[0]) if found else "public"

    def drop_fittings(self) -> None:
        """Drop the schema, after the projection's tables have left it. Fails if it has more than tables and views."""
        self.drop_tables()
        execute(self.alias, f"DROP SCHEMA IF EXISTS {quoted(self.schema)}", ())

    def drop_tables(self) -> None:
        """Drop all tables and views in the schema. For use in a transaction."""
        for kind, name in execute(self.alias, _IN_SCHEMA, (self.schema,)).fetchall():
            execute(self.alias, f"DROP {kind} {quoted(self.schema, name)} CASCADE", None)


_HOME = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)"
_IN_SCHEMA = """
    SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relname::text FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) AND relkind IN ('v', 'r')
"""


def declared_models(subscriber: Subscriber) -> list[type[models.Model]]:
    """Return all models that the projection writes, many-to-many tables included, and instead of a proxy its model.
    Raises `RebuildError` if the subscriber is not a projection."""
    if not isinstance(subscriber, BaseProjection):
        raise RebuildError(f"{subscriber.name} is not a projection: it has no tables that could be built anew")
    declared: Any = [model._meta.concrete_model for model in models_of(subscriber)]
    has_links = isinstance(subscriber, Projection)
    return list(dict.fromkeys(one for model in declared for one in (model, *(_between(model) if has_links else ()))))


def table_names(subscriber: Subscriber) -> list[str]:
    return list(dict.fromkeys(model._meta.db_table for model in declared_models(subscriber)))


def _between(model: type[models.Model]) -> Iterator[type[models.Model]]:
    for field in model._meta.local_many_to_many:
        through: Any = field.remote_field.through
        if through._meta.auto_created:
            yield through
