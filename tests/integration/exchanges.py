"""Count the exchanges with the server: libpq's trace shows each time that it became ready for the next request."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from enode_django.databases import execute


@contextmanager
def exchanges() -> Iterator[list[int]]:
    """Append, at the end of the block, how often the server became ready for the next request of this thread."""
    found: list[int] = []
    execute("default", "SELECT 1", ())
    with tempfile.TemporaryFile("w+") as traced:
        connection.connection.pgconn.trace(traced.fileno())
        try:
            yield found
        finally:
            connection.connection.pgconn.untrace()
        traced.seek(0)
        found.append(traced.read().count("ReadyForQuery"))
