from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaos.checker.facts import Facts, StoredRow
from chaos.checker.replay.follow_ups import TYPES as FOLLOW_UPS


def versions_without_gaps(facts: Facts) -> Iterator[str]:
    """Versions are 1, 2, 3 …; an aggregate is in one shard; a command is stored once, and was sent."""
    for id, rows in facts.histories.items():
        yield from _gaps(id, rows)
    for (command_id, id), rows in facts.rows_by_key.items():
        if len(rows) > 1:
            yield f"command {command_id} of {id} is stored {len(rows)} times, as {[row.version for row in rows]}"
    yield from _places(facts)
    for row in facts.stored:
        if (row.version is None) is not row.is_refusal:
            yield f"command {row.command_id} of {row.aggregate_root_id} is stored as the wrong kind of row"
        yield from _sender(facts, row)


def _gaps(id: str, rows: Sequence[StoredRow]) -> Iterator[str]:
    """Yield the first gap in the versions of an aggregate."""
    for expected, row in enumerate(rows, 1):
        if row.version != expected:
            yield f"aggregate {id} has version {row.version} where {expected} should be"
            return


def _places(facts: Facts) -> Iterator[str]:
    shards: dict[str, int] = {}
    types: dict[str, str] = {}
    for row in facts.stored:
        id, kind = row.aggregate_root_id, row.aggregate_root_type
        if shards.setdefault(id, row.shard) != row.shard:
            yield f"aggregate {id} is in shard {shards[id]} and, by command {row.command_id}, in shard {row.shard}"
        if row.version is not None and types.setdefault(id, kind) != kind:
            yield f"aggregate {id} is a {types[id]} and, in version {row.version}, a {kind}"


def _sender(facts: Facts, row: StoredRow) -> Iterator[str]:
    send = facts.sent.get(row.command_id)
    if send is not None:
        if (send.aggregate_root_id, send.type_name) != (row.aggregate_root_id, row.command_type):
            yield (
                f"command {row.command_id} was sent as {send.type_name} of {send.aggregate_root_id}, "
                f"and is stored as {row.command_type} of {row.aggregate_root_id}"
            )
    elif row.command_type not in FOLLOW_UPS:  # those are checked by the rule of process managers
        yield f"command {row.command_id} ({row.command_type} of {row.aggregate_root_id}) is stored, and nobody sent it"
