"""The heads of all aggregates of a shard.

A loose index scan on (aggregate root id, version) leaps from each id to the next one, and from there to its newest
version. So an aggregate costs a few index probes, however long its history is.
"""

from __future__ import annotations

from typing import NamedTuple

from enode_django.eventstore.rows import by_index, connected, execute
from enode_django.eventstore.statements import TABLE

_NEXT = f"SELECT aggregate_root_id FROM {TABLE} WHERE aggregate_root_id {{place}} ORDER BY aggregate_root_id LIMIT 1"

# The leaps end at the limit, or with NULL after the last aggregate. An aggregate with refusals only has no head.
_HEADS = f"""
    WITH RECURSIVE leap (root) AS (
        ({_NEXT.format(place=">= %s")})
        UNION ALL
        SELECT ({_NEXT.format(place="> leap.root")}) FROM leap WHERE leap.root IS NOT NULL
    )
    SELECT leap.root, head.aggregate_root_type, head.version FROM leap
    LEFT JOIN LATERAL (
        SELECT aggregate_root_type, version FROM {TABLE}
        WHERE aggregate_root_id = leap.root AND version IS NOT NULL ORDER BY version DESC LIMIT 1
    ) AS head ON true
    LIMIT %s
"""


class Head(NamedTuple):
    """The newest version of an aggregate; ``aggregate_root_type`` is that of the stream with this version."""

    aggregate_root_id: str
    aggregate_root_type: str
    version: int


class HeadsPage(NamedTuple):
    """``next_id`` is the first id of the next page; None at the end."""

    heads: list[Head]
    next_id: str | None


def heads_page(alias: str, low: str, high: str | None, *, limit: int) -> HeadsPage:
    """Return the heads of the first aggregates with low <= id < high (in the order of bytes; None: no end), by id.

    A page covers ``limit`` ids; those without a head are left out. Blocks. Raises `StoreUnavailable`.
    """
    with connected(alias) as connection, by_index(connection):
        rows = execute(connection, _HEADS, (low, limit + 1))
    is_last = len(rows) <= limit or rows[-1][0] is None
    next_id = None if is_last or (high is not None and rows[-1][0] >= high) else rows[-1][0]
    heads = [Head(*row) for row in rows[:limit] if row[2] is not None and (high is None or row[0] < high)]
    return HeadsPage(heads, next_id)
