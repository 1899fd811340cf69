"""Names that one process at a time holds, at most as long as it lives.

A hold is an advisory lock in a transaction that does nothing else. It ends with the connection, so names of a killed
process are free at once. The transaction writes nothing and holds no snapshot, so it delays neither the feed nor
vacuum, and a pooler gives it its own session. A restart of the server frees all names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore.rows import connected, execute

# The session idles in its transaction, which the server's settings may forbid.
_NO_TIMEOUTS = """
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""


def _lock(name: str) -> str:
    key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    return f"SELECT pg_try_advisory_xact_lock({key})"


@contextlib.contextmanager
def held(alias: str, name: str) -> Iterator[bool]:
    """Hold ``name`` in this database until the block ends. Yield False if another process holds it. Raises
    `StoreUnavailable`."""
    with connected(alias) as connection:
        session: BaseDatabaseWrapper = connection.copy()
        session.connect()
    with contextlib.closing(session):
        # No parameters, so psycopg uses the simple protocol, after which the session holds no snapshot.
        with connected(alias), psycopg.Cursor[Any](session.connection) as cursor:
            cursor.execute("BEGIN")
            cursor.execute(_NO_TIMEOUTS)
            ((is_ours,),) = cursor.execute(_lock(name)).fetchall()
        try:
            yield is_ours
        finally:
            # The server notices a closed connection later, but the name should be free at once.
            with contextlib.suppress(psycopg.Error), psycopg.Cursor[Any](session.connection) as cursor:
                cursor.execute("ROLLBACK")


def is_free(connection: BaseDatabaseWrapper, name: str) -> bool:
    """Return True if ``name`` is not held. The caller's transaction then holds it until its end."""
    ((free,),) = execute(connection, _lock(name), ())
    return bool(free)
