"""Generations of positions in a Postgres store.

A restore sets transaction ids back, while restored rows keep theirs. So each generation is recorded with its cluster
and timeline. A process that finds the store in another cluster or on another timeline begins the next generation.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.databases import in_transaction
from enode_django.eventstore import known_corrections, statements
from enode_django.eventstore.positions import FIRST, Begun, Position
from enode_django.eventstore.rows import by_index, execute, run

logger = logging.getLogger("enode_django.eventstore")

BEGUN = "the event store in database %r was restored or moved (%s before, %s now): a new generation of positions begins"


class State(NamedTuple):
    """The state of a store: the id of its oldest open transaction, the server that it is on, and all generations, the
    oldest first. A server that starts anew or is promoted is another
    server."""

    oldest_open: int
    server: str
    generations: list[Begun]

    @property
    def position(self) -> Position:
        return Position(self.generations[-1].generation, self.oldest_open)


def state(connection: BaseDatabaseWrapper) -> State:
    """Return the state of the store. If the database was restored or moved, begin a new generation first.

    Beginning one blocks until running writers have ended; otherwise nothing is locked. Later reads of this process
    apply all corrections that exist now.
    """
    ((oldest_open, server, cluster, recorded, generations, sequences, has_corrections),) = execute(
        connection, statements.STATE, ()
    )
    known_corrections.note(connection, has_corrections)
    known = list(map(Begun, generations, sequences))
    if cluster is not None and cluster != recorded:
        last = known[-1].generation if known else FIRST.generation
        if recorded is not None or _has_rows_from_elsewhere(connection):
            logger.warning(BEGUN, connection.alias, recorded or "another cluster", cluster)
            begin_generation(connection, last)
            return state(connection)
        # Inside a caller's transaction this would block others, and might be rolled back.
        if not in_transaction(connection):
            run(connection, statements.RECORD_CLUSTER)
    return State(oldest_open, server, known if known and known[0] == FIRST else [FIRST, *known])


def _has_rows_from_elsewhere(connection: BaseDatabaseWrapper) -> bool:
    """Return True if rows come from another cluster. Always False inside a caller's transaction, whose own rows look
    as if they did."""
    if in_transaction(connection):
        return False
    with by_index(connection):
        ((has_rows,),) = execute(connection, statements.HAS_ROWS_FROM_ELSEWHERE, ())
    return bool(has_rows)


def begin_generation(connection: BaseDatabaseWrapper, last: int) -> None:
    """Begin the generation after ``last``, unless it has begun already."""
    with transaction.atomic(using=connection.alias):
        run(connection, statements.LOCK_OUT_WRITERS)
        run(connection, statements.ADVANCE_SEQUENCE)
        run(connection, statements.BEGIN_GENERATION, (last,))
