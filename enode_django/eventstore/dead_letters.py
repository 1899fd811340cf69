"""The tables that keep commands which failed for good, beside the streams of their aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple, Protocol

from enode_django.eventstore.rows import connected, execute, run
from enode_django.ids import MAX_ID_LENGTH

TABLE = "enode_django_deadletter"
ERROR_MAX = 20_000
"""Characters of an error that are kept, with its traceback: the last ones say most."""


class DeadLetter(NamedTuple):
    """``key`` is the same for every delivery of a command, and of bytes that are none; ``body`` is the message.

    ``topic``, ``queue`` and ``offset`` say where it was delivered last. ``is_answered``: its sender was told that it
    failed.
    """

    key: str
    command_id: str
    aggregate_root_id: str
    command_type: str
    topic: str
    queue: int
    offset: int
    error_type: str
    error: str
    body: bytes
    is_answered: bool


class DeadLetters(Protocol):
    """The dead letters of one shard of the event store."""

    def keep(self, letters: Sequence[DeadLetter], answered: Sequence[str] = ()) -> None:
        """Returns when they are durable. One whose key is there already counts an attempt, and says what failed last.
        Those with the keys ``answered``, if they are there, count as answered from now on. Raises `StoreUnavailable`;
        it may be called again then."""

    def known(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that a letter has. Raises `StoreUnavailable`."""

    def count(self) -> int:
        """Return how many letters there are. Raises `StoreUnavailable`."""

    def prune(self, before: datetime, *, limit: int = 1_000) -> int:
        """Delete some of those that failed last before a time; returns how many. Raises `StoreUnavailable`."""


_COLUMNS = """key, command_id, aggregate_root_id, command_type, topic, queue, message_offset, error_type, error, body,
    is_answered"""
# In the order of the keys: in one order everywhere, so that two workers cannot wait for each other.
_KEEP = f"""
    INSERT INTO {TABLE} AS known ({_COLUMNS})
    SELECT {_COLUMNS} FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::bigint[],
        %s::text[], %s::text[], %s::bytea[], %s::boolean[]) AS sent ({_COLUMNS})
    ORDER BY key
    ON CONFLICT (key) DO UPDATE SET topic = EXCLUDED.topic, queue = EXCLUDED.queue, body = EXCLUDED.body,
        message_offset = EXCLUDED.message_offset, error_type = EXCLUDED.error_type, error = EXCLUDED.error,
        is_answered = known.is_answered OR EXCLUDED.is_answered, attempts = known.attempts + 1,
        last_failed_at = statement_timestamp()
"""
_ANSWER = f"UPDATE {TABLE} SET is_answered = true WHERE key = ANY(%s::text[])"
_KNOWN = f"SELECT key FROM {TABLE} WHERE key = ANY(%s::text[])"
_COUNT = f"SELECT count(*) FROM {TABLE}"
_PRUNE = f"""
    DELETE FROM {TABLE} WHERE id IN (SELECT id FROM {TABLE} WHERE last_failed_at < %s ORDER BY last_failed_at LIMIT %s)
"""


class PostgresDeadLetters:
    """Keeps letters in one database, over the calling thread's Django connection."""

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias

    def keep(self, letters: Sequence[DeadLetter], answered: Sequence[str] = ()) -> None:
        rows = {letter.key: letter for letter in letters}.values()
        with connected(self.alias) as connection:
            if rows:
                run(connection, _KEEP, tuple(map(list, zip(*rows, strict=True))))
            if answered:
                run(connection, _ANSWER, (list(answered),))

    def known(self, keys: Sequence[str]) -> set[str]:
        with connected(self.alias) as connection:
            return {key for (key,) in execute(connection, _KNOWN, (list(keys),))}

    def count(self) -> int:
        with connected(self.alias) as connection:
            ((count,),) = execute(connection, _COUNT, ())
            return int(count)

    def prune(self, before: datetime, *, limit: int = 1_000) -> int:
        with connected(self.alias) as connection:
            return run(connection, _PRUNE, (before, limit))


class MemoryDeadLetters:
    """Keeps letters for event stores that are not in a database. ``kept`` has the newest of each key; nothing is ever
    pruned."""

    def __init__(self) -> None:
        self.kept: dict[str, DeadLetter] = {}

    def keep(self, letters: Sequence[DeadLetter], answered: Sequence[str] = ()) -> None:
        self.kept.update((letter.key, letter) for letter in letters)
        for key in self.kept.keys() & set(answered):
            self.kept[key] = self.kept[key]._replace(is_answered=True)

    def known(self, keys: Sequence[str]) -> set[str]:
        return self.kept.keys() & set(keys)

    def count(self) -> int:
        return len(self.kept)

    def prune(self, before: datetime, *, limit: int = 1_000) -> int:
        return 0


def key_of(command_id: str, aggregate_root_id: str, body: bytes) -> str:
    """A digest of the command's ids, or of the message if it has none.

    >>> key_of("c", "x", b"") == key_of("c", "x", b"again"), key_of("", "x", b"1") == key_of("", "x", b"2")
    (True, False)
    """
    named = b"\0".join(text.encode(errors="replace") for text in (command_id, aggregate_root_id))
    return sha256(named if command_id else body).hexdigest()


def column_text(text: str, length: int = MAX_ID_LENGTH) -> str:
    """Return the part of a text that a column can hold: its end, without NUL and half characters.

    >>> column_text("a" + chr(0) + "b"), column_text("abc", 2)
    ('a�b', 'bc')
    """
    return text[-length:].replace("\0", "\ufffd").encode(errors="replace").decode()
