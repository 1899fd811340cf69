"""Append a batch by one binary COPY: the fast way, which stores all records or none."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import sqlstates, statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.buckets import ShardOwnership
from enode_django.eventstore.copy_format import chunks
from enode_django.eventstore.shard_map import owning

_CHUNK = 100
_aggregate_root_id = attrgetter("aggregate_root_id")


class _Dropped(Exception):
    """Raised to roll the transaction back."""


def copied(
    connection: BaseDatabaseWrapper, records: Sequence[StreamRecord], claim: ShardOwnership, server: str
) -> bool:
    """Copy the records in one transaction. Return False if the database refuses one, drops one, or one does not fit its
    column: none is then stored. Blocks until the transaction has committed."""
    # All writers take their locks in this order, so deadlocks are rare.
    in_order = sorted(records, key=_aggregate_root_id)
    try:
        cursor = psycopg.Cursor(connection.connection)
        with owning(connection, claim, server):
            with cursor.copy(statements.COPY) as copy:
                for chunk in chunks(in_order, _CHUNK):
                    copy.write(chunk)
            if cursor.rowcount != len(records):
                # A foreign trigger has dropped rows without an error; the slow path finds out which. Rolled back,
                # because versions that follow a dropped one must not be stored.
                raise _Dropped
    except psycopg.Error as error:
        if sqlstates.is_data_error(error) or sqlstates.may_be_too_much(error):
            return False
        raise
    except (ValueError, struct.error, _Dropped):
        return False
    return True
