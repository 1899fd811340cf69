"""The claims of an event store's shards: read from their databases, and recorded for new shards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.concurrency.outages import Attempts
from enode_django.databases import in_transaction
from enode_django.eventstore import statements
from enode_django.eventstore.buckets import ALL, BUCKETS, SET_UP, Found, ShardOwnership, bucket_of, first_claims, owners
from enode_django.eventstore.rows import connected, execute, run
from enode_django.exceptions import ShardMapOutdated, StoreUnavailable

logger = logging.getLogger("enode_django.eventstore")


class ShardMap:
    """A thread-safe cache of the claims of all shards.

    It queries the databases at first use and after `forget`. Methods then block, and raise `StoreUnavailable`, or
    `ShardMismatch` if the databases are not the shards of one store. At the first query one shard may be unavailable,
    or not migrated yet: it owns the buckets that the others do not own.
    """

    def __init__(self, aliases: Iterable[str]) -> None:
        self.aliases = list(aliases)
        self._lock = threading.Lock()
        self._claims: dict[str, ShardOwnership] = {}
        self._forgotten: set[str] = set()
        self._owners: Sequence[int] | None = None
        self._attempts = {alias: Attempts(is_rare=True) for alias in self.aliases}

    def place_of(self, aggregate_root_id: str) -> int:
        """Return the index in ``aliases`` of the shard that has the aggregate."""
        if self._owners is None:
            self.load()
        assert self._owners is not None
        return self._owners[bucket_of(aggregate_root_id)]

    def claim_of(self, alias: str) -> ShardOwnership:
        if alias not in self._claims or alias in self._forgotten:
            away = self.load()
            if alias in away:
                raise away[alias]
        return self._claims[alias]

    def forget(self, alias: str) -> None:
        """Query the shard's claim again before the next write to it."""
        with self._lock:
            self._forgotten.add(alias)

    def load(self) -> Mapping[str, StoreUnavailable]:
        """Read and compare the claims of all shards, and record first claims for shards without one. Return why each
        shard that was not read is unavailable."""
        with self._lock:
            here, away = self._ask()
            if any(one.claim is None for one in here):
                here = self._record(here, away)
            elif not away and any(one.claim is not None and one.claim.epoch < SET_UP for one in here):
                here = self._confirm()  # the process that recorded them ended before it confirmed
            for one in here:
                assert one.claim is not None
                self._claims[one.alias] = one.claim
                self._forgotten.discard(one.alias)
            self._owners = owners(self._assumed(away))
            return away

    def compare(self) -> None:
        """Read and compare as `load` does, but record nothing: a shard without a claim counts with the one that `load`
        would record. Compare nothing if a shard is unavailable."""
        found, away = self._ask()
        if away:
            return
        first = first_claims(found) if any(one.claim is None for one in found) else {}
        owners({one.alias: one.claim or first[one.alias] for one in found})

    def _ask(self) -> tuple[list[Found], dict[str, StoreUnavailable]]:
        found, away = [], {}
        for alias in self.aliases:
            try:
                found.append(_find(alias, self._attempts[alias]))
            except StoreUnavailable as error:
                away[alias] = error
        return found, away

    def _record(self, found: Sequence[Found], away: Mapping[str, StoreUnavailable]) -> list[Found]:
        if away:
            new = [one.alias for one in found if one.claim is None]
            raise _unavailable(away, f", and without them {new!r} cannot know which buckets to own")
        first = first_claims(found)
        owners({one.alias: one.claim or first[one.alias] for one in found})  # before anything is recorded
        for alias, claim in first.items():
            _record(alias, claim)
        return self._confirm()

    def _confirm(self) -> list[Found]:
        """Raise the epochs to `SET_UP`, since all have recorded their buckets. From now on, a missing record does not
        mean a new store."""
        for alias in self.aliases:
            _confirm(alias)
        return [_find(alias, self._attempts[alias]) for alias in self.aliases]

    def _assumed(self, away: Mapping[str, StoreUnavailable]) -> dict[str, ShardOwnership]:
        """Return the claims of all, in order. One shard that never answered gets the buckets that the others lack."""
        unknown = {alias: error for alias, error in away.items() if alias not in self._claims}
        if len(unknown) > 1:
            raise _unavailable(unknown)
        rest = ALL.difference(*(claim.buckets for claim in self._claims.values()))
        return {alias: self._claims.get(alias, ShardOwnership(-1, 0, rest)) for alias in self.aliases}


def _unavailable(away: Mapping[str, StoreUnavailable], consequence: str = "") -> StoreUnavailable:
    """Return an error of the class of the first one that needs an operator, or else of any."""
    error = max(away.values(), key=lambda one: one.needs_help)
    found = type(error)(f"the databases {[*away]!r} of the event store cannot be read{consequence}: {error}")
    found.__cause__ = error.__cause__  # it says whether waiting helps
    return found


def _find(alias: str, attempts: Attempts) -> Found:
    try:
        with _borrowed(alias) as connection:
            ((has_streams,),) = execute(connection, statements.HAS_STREAMS, ())
            attempts.worked()
            for number, epoch, buckets in execute(connection, statements.CLAIM, ()):
                return Found(alias, ShardOwnership(number, epoch, frozenset(buckets)), has_streams)
            return Found(alias, None, has_streams)
    except StoreUnavailable as error:
        attempts.failed_at(f"the event store in database {alias!r}", str(error))
        raise


def _record(alias: str, claim: ShardOwnership) -> None:
    with _borrowed(alias) as connection:
        place = (claim.number, claim.epoch, sorted(claim.buckets))
        if run(connection, statements.RECORD_CLAIM, place):
            told = "database %r is shard %d of the event store now, with %d of %d buckets"
            logger.info(told, alias, claim.number, len(claim.buckets), BUCKETS)


def _confirm(alias: str) -> None:
    with _borrowed(alias) as connection:
        run(connection, statements.CONFIRM_CLAIM, (SET_UP, SET_UP))


@contextmanager
def _borrowed(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Yield the calling thread's connection. Close it afterwards if it was not open before: a mailbox's thread needs no
    connections to other shards."""
    was_open = connections[alias].connection is not None
    try:
        with connected(alias) as connection:
            yield connection
    finally:
        if not was_open and not in_transaction(connections[alias]):
            connections[alias].close()


class ServerChanged(StoreUnavailable):
    """A pooler or proxy has moved a session to another server, of which nothing is known yet. Nothing was written."""


@contextmanager
def owning(connection: BaseDatabaseWrapper, claim: ShardOwnership, server: str) -> Iterator[None]:
    """Run a transaction in which the shard owns the buckets of ``claim``; they cannot change before its end. Raises
    `ShardMapOutdated` if the recorded claim is another one, and `ServerChanged` if it runs on another server than that
    of `generations.State`."""
    if in_transaction(connection):
        with transaction.atomic(using=connection.alias):
            _check(connection, claim, server, execute(connection, statements.OPEN_CLAIM_WITHIN, ()))
            yield
        return
    raw = connection.connection
    try:
        with psycopg.Cursor[Any](raw) as cursor:
            cursor.execute("; ".join(("BEGIN", *statements.OPEN_CLAIM)), prepare=False)  # in one message
            while cursor.nextset():
                pass
            _check(connection, claim, server, cursor.fetchall())
        yield
        raw.commit()
    except BaseException:
        if not raw.closed:
            with suppress(psycopg.Error):
                raw.rollback()
        raise


def _check(
    connection: BaseDatabaseWrapper, claim: ShardOwnership, server: str, found: Sequence[tuple[int, int, str]]
) -> None:
    if found and found[0][2] != server:
        raise ServerChanged(f"database {connection.alias!r} is on another server now, or its server has started anew")
    if [row[:2] for row in found] != [(claim.number, claim.epoch)]:
        raise ShardMapOutdated(
            f"shard {claim.number} in database {connection.alias!r} owns other buckets than at epoch {claim.epoch}: "
            f"found {found!r}"
        )
