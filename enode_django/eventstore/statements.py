"""The SQL of the Postgres driver. No statement leaves anything in the session, so that poolers may hand it round."""

from __future__ import annotations

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.copy_format import COLUMNS

TABLE = "enode_django_eventstream"

_RECORD = ", ".join(StreamRecord._fields)

COPY = f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"

# In the order they were sent: it decides which of two that exclude each other is stored, and in which order locks
# are taken.
INSERT = f"""
    INSERT INTO {TABLE} ({_RECORD})
    SELECT {_RECORD}
    FROM unnest(%b::text[], %t::bigint[], %b::text[], %b::text[], %b::text[], %b::timestamptz[], %b::bytea[],
                %b::bytea[]) WITH ORDINALITY AS sent ({_RECORD}, place)
    ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING aggregate_root_id, version, command_id
"""

LOAD = f"""
    SELECT {_RECORD} FROM {TABLE}
    WHERE aggregate_root_id = %s AND version > %s AND version <= %s
    ORDER BY version LIMIT %s
"""

# OFFSET 0 makes this one probe of an index per aggregate: before the first ANALYZE of a new table, the planner takes a
# few hundred aggregates for most of it, and would read it all.
LOAD_MANY = f"""
    SELECT stream.* FROM (SELECT DISTINCT unnest(%b::text[])) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT {_RECORD} FROM {TABLE} WHERE aggregate_root_id = wanted.root AND version IS NOT NULL OFFSET 0
    ) AS stream
    ORDER BY aggregate_root_id, version
"""

LOAD_RANGES = f"""
    SELECT stream.* FROM unnest(%b::text[], %b::bigint[], %b::bigint[]) AS wanted (root, after, until)
    CROSS JOIN LATERAL (
        SELECT {_RECORD} FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version > wanted.after AND version <= wanted.until
        ORDER BY version LIMIT %s
    ) AS stream
    ORDER BY aggregate_root_id, version
"""

# The limits make each of these one probe of an index per key, whatever the planner thinks of the table.
FIND = f"""
    SELECT found.* FROM unnest(%b::text[], %b::text[]) AS wanted (command, root)
    CROSS JOIN LATERAL (
        SELECT {_RECORD} FROM {TABLE} WHERE command_id = wanted.command AND aggregate_root_id = wanted.root LIMIT 1
    ) AS found
"""

FIND_VERSIONS = f"""
    SELECT found.* FROM unnest(%b::text[], %t::bigint[]) AS wanted (root, number)
    CROSS JOIN LATERAL (
        SELECT aggregate_root_id, version FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version = wanted.number LIMIT 1
    ) AS found
"""

HEADS = f"""
    SELECT wanted.root, head.version FROM unnest(%b::text[]) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT version FROM {TABLE} WHERE aggregate_root_id = wanted.root AND version IS NOT NULL
        ORDER BY version DESC LIMIT 1
    ) AS head
"""

# The walk from the newest version back ends at the first one that is old enough.
HEADS_BEFORE = f"""
    SELECT wanted.root, head.version FROM unnest(%b::text[]) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT version FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version IS NOT NULL AND transaction_id < %s::bigint::text::xid8
        ORDER BY version DESC LIMIT 1
    ) AS head
"""

POSITION = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

# As the index enode_stream_position has it: BRIN knows no order of xid8.
_POSITION_OF_ROW = "transaction_id::text::bigint"

SETTLED = f"""
    SELECT aggregate_root_id, version, command_id, aggregate_root_type, command_type, created_at,
           CASE WHEN version IS NULL THEN events ELSE '' END, CASE WHEN version IS NULL THEN metadata ELSE '' END
    FROM {TABLE} WHERE {_POSITION_OF_ROW} >= %s::bigint AND {_POSITION_OF_ROW} < %s::bigint LIMIT %s
"""

PRUNE_REFUSALS = f"""
    DELETE FROM {TABLE} WHERE sequence = ANY(ARRAY(
        SELECT sequence FROM {TABLE} WHERE version IS NULL AND created_at < %s
        ORDER BY created_at LIMIT %s FOR UPDATE SKIP LOCKED
    ))
"""
