"""The swap of two generations of a projection's tables.

Writers are locked out first, and the incoming tables are caught up while readers continue. Readers wait only while the
tables are moved between schemas. All of this is one transaction, so a crash leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from django.db import transaction

from enode_django.concurrency.backoff import delays
from enode_django.concurrency.stopping import pause
from enode_django.databases import execute, heal_connections, lift_statement_timeout
from enode_django.eventing import parking
from enode_django.eventing.checkpoints import PARKED
from enode_django.eventstore import sqlstates
from enode_django.exceptions import EnodeError, RebuildError, TablesInUse
from enode_django.models import ProjectionGeneration
from enode_django.rebuilding.clearing import LOCK_NOT_AVAILABLE
from enode_django.rebuilding.definitions import Table, describe, quoted
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target

ATTEMPTS = 20
LOCK_TIMEOUT = "2s"
"""``lock_timeout`` of the swap: while it waits for a lock, others wait behind it."""
WRITERS_LOCKED_OUT, READERS_LOCKED_OUT = "5min", "30s"
"""The times that the swap may leave its transaction idle while writers, or readers as well, are locked out. Then its
session ends: its process stands still, or its machine has vanished."""


class Swap(NamedTuple):
    """Replaces the generation ``outgoing``, which is in use, by ``incoming``."""

    target: Target
    incoming: Shadow
    outgoing: Shadow

    def run(self, last_steps: Callable[[], None]) -> None:
        """Swap the tables. Blocks.

        ``last_steps`` is called in the transaction while writers are locked out, and must bring the incoming tables up
        to the outgoing ones. A retriable error, of it or of the database, repeats the transaction, up to `ATTEMPTS`
        times; any other error ends the swap. Raises `TablesInUse` if the tables cannot be locked, and `RebuildError` if
        they were changed since the incoming ones were made.
        """
        for attempt, delay in enumerate(delays(0.1, 2.0), 1):
            try:
                heal_connections()
                with transaction.atomic(using=self.target.alias, durable=True):
                    if not self._is_done():  # by an earlier attempt, whose answer was lost
                        self._swap(last_steps)
                return
            except (EnodeError, *sqlstates.DATABASE_ERRORS) as error:
                if attempt < ATTEMPTS and _is_passing(error):
                    pause(delay)
                    continue
                if sqlstates.sqlstate(error) not in LOCK_NOT_AVAILABLE:
                    raise
                raise TablesInUse(
                    f"the tables of {self.target.name} could not be locked in {ATTEMPTS} attempts of {LOCK_TIMEOUT}: "
                    "a long transaction uses them; see pg_stat_activity, and try again"
                ) from error

    def _swap(self, last_steps: Callable[[], None]) -> None:
        alias = self.target.alias
        lift_statement_timeout(alias)
        _set(alias, "lock_timeout", LOCK_TIMEOUT)
        _set(alias, "idle_in_transaction_session_timeout", WRITERS_LOCKED_OUT)
        self._lock("EXCLUSIVE")
        if self._is_done():  # by an earlier attempt, which the server has committed after its connection was lost
            return
        tables = self._check()  # as they stay: nobody can alter them until the locks are released
        last_steps()
        # Deferred constraints are checked while others may still read, and not at the end of the transaction.
        execute(alias, "SET CONSTRAINTS ALL IMMEDIATE", ())
        _set(alias, "idle_in_transaction_session_timeout", READERS_LOCKED_OUT)
        self._lock("ACCESS EXCLUSIVE")
        self.target.check(tables)
        self._exchange(tables)

    def _is_done(self) -> bool:
        return self.target.generation() == self.incoming.generation

    def _lock(self, mode: str) -> None:
        tables = ", ".join(sorted(quoted(name) for name in self.target.tables))
        execute(self.target.alias, f"LOCK TABLE {tables} IN {mode} MODE", None)

    def _check(self) -> Mapping[str, Table]:
        if self.target.generation() != self.outgoing.generation:
            raise RebuildError(f"{self.target.name} has other tables in use than at the beginning: begin anew")
        return check_alike(self.target, self.incoming)

    def _exchange(self, tables: Mapping[str, Table]) -> None:
        alias, target = self.target.alias, self.target
        self.outgoing.make_schema()
        for table in tables.values():
            move(alias, table, table.schema, self.outgoing.schema)
            move(alias, table, self.incoming.schema, table.schema)
        self._exchange_parked()
        self.incoming.drop_fittings()
        ProjectionGeneration.objects.using(alias).update_or_create(
            subscriber=target.key, defaults={"generation": self.incoming.generation}
        )

    def _exchange_parked(self) -> None:
        """Exchange the parked events of the generations. Those of aggregate types unknown to this process stay."""
        alias, target = self.target.alias, self.target
        types = target.types()
        outgoing, incoming = (quoted(shadow.schema, PARKED) for shadow in (self.outgoing, self.incoming))
        # Tables kept for an undo may be older than these columns.
        execute(alias, f"ALTER TABLE {incoming} {_NEWER_COLUMNS}", None)
        execute(alias, _TAKE.format(outgoing, PARKED), (target.key,))
        remove = f"DELETE FROM {PARKED} WHERE subscriber = %s AND aggregate_root_type = ANY(%s)"
        execute(alias, remove, (target.key, types))
        execute(alias, _TAKE.format(PARKED, incoming), (target.key,))


def _set(alias: str, name: str, value: str) -> None:
    """Change a setting until the end of the transaction."""
    execute(alias, "SELECT set_config(%s, %s, true)", (name, value))


def check_alike(target: Target, shadow: Shadow) -> Mapping[str, Table]:
    """Raise `RebuildError` if the shadow's tables differ from those in use, which may have been altered. Return the
    definitions of those in use. For use in a transaction."""
    used = describe(target.alias, target.tables)
    with shadow.opened():
        made = describe(target.alias, target.tables)
    for name in target.tables:
        if name not in used or name not in made:
            raise RebuildError(f"{name} is gone: rebuild {target.name} anew")
        if different := used[name].differences(made[name]):
            raise RebuildError(
                f"{name} is not as it was when its other build was made ({', '.join(different)}), it was "
                "migrated or altered meanwhile: rebuild it anew"
            )
    return used


def move(alias: str, table: Table, origin: str, destination: str) -> None:
    """Move the table of this name from schema to schema, with its indexes, sequences and statistics."""
    to = f"SET SCHEMA {quoted(destination)}"
    execute(alias, f"ALTER TABLE {quoted(origin, table.name)} {to}", None)
    for statistics in table.statistics:
        execute(alias, f"ALTER STATISTICS {quoted(origin, statistics.name)} {to}", None)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, EnodeError):
        return error.retriable
    return sqlstates.sqlstate(error) in LOCK_NOT_AVAILABLE or sqlstates.is_unavailable(error)


_TAKE = f"""
    INSERT INTO {{}} ({parking.COLUMNS}) SELECT {parking.COLUMNS} FROM {{}} WHERE subscriber = %s ON CONFLICT DO NOTHING
"""
_NEWER_COLUMNS = """ADD COLUMN IF NOT EXISTS next_try_at timestamptz,
    ADD COLUMN IF NOT EXISTS fingerprint varchar(100) COLLATE "C" DEFAULT '' NOT NULL"""
