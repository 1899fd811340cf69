"""Django's connections in threads that live long: no request ends, so nobody else looks whether they still work."""

from __future__ import annotations

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus


def healthy_connection(alias: str = "default") -> BaseDatabaseWrapper:
    """The calling thread's connection, open; one that is known to be lost is replaced first.

    Asks the socket, not the server, so it costs no round trip, and a server that vanished without a word goes
    unnoticed: the next statement fails, and the call after that gets a new connection. Inside an atomic block the
    connection is returned as it is. Raises what Django raises when no connection can be made. Blocks to connect.
    """
    connection = connections[alias]
    discard_if_lost(connection)
    connection.ensure_connection()
    return connection


def discard_if_lost(connection: BaseDatabaseWrapper) -> None:
    """Close what is lost or stuck in a half-done exchange, unless somebody's atomic block rests on it."""
    if connection.connection is not None and not in_transaction(connection) and _is_lost(connection.connection):
        connection.close()


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether somebody else will commit: an atomic block is open, or Django was told not to commit at all."""
    return connection.in_atomic_block or not connection.autocommit


def _is_lost(raw: psycopg.Connection[object]) -> bool:
    if raw.closed:
        return True
    try:
        # Twice, since the first may only bring in the server's last words, and the second sees the end of the stream.
        raw.pgconn.consume_input()
        raw.pgconn.consume_input()
    except psycopg.Error:
        return True
    return raw.info.transaction_status != TransactionStatus.IDLE


def heal_connections() -> None:
    """Let go of the calling thread's broken connections, to all databases: what application code opened, too."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor == "postgresql":
            discard_if_lost(connection)
        else:
            connection.close_if_unusable_or_obsolete()
