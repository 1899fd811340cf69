"""The tables of dead letters, each in the database of its aggregates' streams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple, Protocol

from enode_django.eventstore.rows import connected, execute, run
from enode_django.ids import MAX_ID_LENGTH

TABLE = "enode_django_deadletter"
ERROR_MAX = 20_000
"""The most characters of an error and its traceback that are kept: the last ones, which say most."""


class DeadLetter(NamedTuple):
    """A command that failed for good, or a message that is not a command.

    ``key`` is the same for every delivery; ``body`` is the message. ``topic``, ``queue`` and ``offset`` are those of
    its last delivery. ``is_answered``: the failure was reported to its sender.
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
        """Store letters, and mark those with the keys ``answered`` as answered, if they exist. Return when this is
        durable.

        A letter whose key exists counts one more attempt and replaces the place, body and error of the stored one.
        Raises `StoreUnavailable`; the call may then be repeated.
        """

    def known(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that have a letter. Raises `StoreUnavailable`."""

    def count(self) -> int:
        """Return the number of letters. Raises `StoreUnavailable`."""

    def prune(self, age: timedelta, *, limit: int = 1_000) -> int:
        """Delete up to ``limit`` letters whose last failure is longer ago than ``age``, by the clock that has dated it.
        Return the number deleted. Raises `StoreUnavailable`."""


_COLUMNS = """key, command_id, aggregate_root_id, command_type, topic, queue, message_offset, error_type, error, body,
    is_answered"""
# Sorted by key: all workers lock rows in the same order, so they cannot deadlock.
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
    DELETE FROM {TABLE} WHERE id IN (
        SELECT id FROM {TABLE} WHERE last_failed_at < statement_timestamp() - %s ORDER BY last_failed_at LIMIT %s
    )
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

    def prune(self, age: timedelta, *, limit: int = 1_000) -> int:
        with connected(self.alias) as connection:
            return run(connection, _PRUNE, (age, limit))


class MemoryDeadLetters:
    """Keeps letters in memory, for event stores that are not in a database. ``kept`` has the newest letter of each key;
    nothing is ever pruned."""

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

    def prune(self, age: timedelta, *, limit: int = 1_000) -> int:
        return 0


def key_of(command_id: str, aggregate_root_id: str, body: bytes) -> str:
    """Return a digest of the command's ids, or of the message if it has none.

    >>> key_of("c", "x", b"") == key_of("c", "x", b"again"), key_of("", "x", b"1") == key_of("", "x", b"2")
    (True, False)
    """
    named = b"\0".join(text.encode(errors="replace") for text in (command_id, aggregate_root_id))
    return sha256(named if command_id else body).hexdigest()


def column_text(text: str, length: int = MAX_ID_LENGTH) -> str:
    """Return the end of a text as a column of ``length`` can hold it, with NUL and lone surrogates replaced.

    >>> column_text("a" + chr(0) + "b"), column_text("abc", 2)
    ('a�b', 'bc')
    """
    return text[-length:].replace("\0", "\ufffd").encode(errors="replace").decode()
