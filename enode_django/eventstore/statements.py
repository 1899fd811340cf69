"""The SQL of the Postgres driver. No statement leaves state in the session, so a pooler may share it."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.copy_format import COLUMNS

TABLE = "enode_django_eventstream"
GENERATIONS = "enode_django_storegeneration"
SHARD = "enode_django_shard"
CORRECTIONS = "enode_django_eventcorrection"

_RECORD = ", ".join(StreamRecord._fields)

# The events of a row in a database with corrections. For an aggregate without corrections this costs one probe of a
# hash table of the corrected aggregates, which each statement builds once.
_CORRECTED = f"""
    CASE WHEN {TABLE}.aggregate_root_id IN (SELECT aggregate_root_id FROM {CORRECTIONS}) THEN coalesce((
        SELECT newest.events FROM {CORRECTIONS} AS newest
        WHERE newest.aggregate_root_id = {TABLE}.aggregate_root_id AND newest.version = {TABLE}.version
        ORDER BY newest.id DESC LIMIT 1
    ), {TABLE}.events) ELSE {TABLE}.events END
"""
_EVENTS = "{events}"
"""Stands for the column of events, with corrections or without them, see `_reading`."""


class Reading(NamedTuple):
    """A statement that reads rows: ``plain`` for a database without corrections, ``corrected`` for one with some."""

    plain: str
    corrected: str


def _reading(statement: str) -> Reading:
    return Reading(statement.replace(_EVENTS, "events"), statement.replace(_EVENTS, _CORRECTED))


_READ = ", ".join(f"{_EVENTS} AS events" if name == "events" else name for name in StreamRecord._fields)
_BYTES = "octet_length(events) + octet_length(metadata)"

COPY = f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"

# The order of the parameters decides which of two conflicting records is stored, and the order of the locks.
INSERT = f"""
    INSERT INTO {TABLE} ({_RECORD})
    SELECT {_RECORD}
    FROM unnest(%b::text[], %t::bigint[], %b::text[], %b::text[], %b::text[], %b::timestamptz[], %b::bytea[],
                %b::bytea[]) WITH ORDINALITY AS sent ({_RECORD}, place)
    ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING aggregate_root_id, version, command_id
"""

LOAD = _reading(f"""
    SELECT {_READ} FROM {TABLE}
    WHERE aggregate_root_id = %s AND version > %s AND version <= %s
    ORDER BY version LIMIT %s
""")

# OFFSET 0 forces one index probe per aggregate: before the first ANALYZE of a new table, the planner takes a few
# hundred aggregates for most of the table and would read all of it.
LOAD_MANY = _reading(f"""
    SELECT stream.* FROM (SELECT DISTINCT unnest(%b::text[])) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT {_READ} FROM {TABLE} WHERE aggregate_root_id = wanted.root AND version IS NOT NULL OFFSET 0
    ) AS stream
    ORDER BY aggregate_root_id, version
""")

LOAD_RANGES = _reading(f"""
    SELECT stream.* FROM unnest(%b::text[], %b::bigint[], %b::bigint[]) AS wanted (root, after, until)
    CROSS JOIN LATERAL (
        SELECT {_READ} FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version > wanted.after AND version <= wanted.until
        ORDER BY version LIMIT %s
    ) AS stream
    ORDER BY aggregate_root_id, version
""")

# The limits force one index probe per key, regardless of the planner's estimates.
_FIND = f"""
    SELECT found.* FROM unnest(%b::text[], %b::text[]) AS wanted (command, root)
    CROSS JOIN LATERAL (
        SELECT {{columns}} FROM {TABLE} WHERE command_id = wanted.command AND aggregate_root_id = wanted.root LIMIT 1
    ) AS found
"""
FIND = _reading(_FIND.format(columns=_READ))
FIND_AS_STORED = _FIND.format(columns=_RECORD)

FIND_VERSIONS = f"""
    SELECT found.* FROM unnest(%b::text[], %t::bigint[]) AS wanted (root, number)
    CROSS JOIN LATERAL (
        SELECT aggregate_root_id, version FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version = wanted.number LIMIT 1
    ) AS found
"""

# The aggregates with a version or a command that is stored. Subqueries with a limit force one index probe per key.
FIND_DISPUTED = f"""
    SELECT DISTINCT sent.root FROM unnest(%b::text[], %t::bigint[], %b::text[]) AS sent (root, number, command)
    WHERE (SELECT true FROM {TABLE} WHERE aggregate_root_id = sent.root AND version = sent.number LIMIT 1)
       OR (SELECT true FROM {TABLE} WHERE command_id = sent.command AND aggregate_root_id = sent.root LIMIT 1)
"""

HEADS = f"""
    SELECT wanted.root, head.version FROM unnest(%b::text[]) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT version FROM {TABLE} WHERE aggregate_root_id = wanted.root AND version IS NOT NULL
        ORDER BY version DESC LIMIT 1
    ) AS head
"""

# The expression of the index enode_stream_position: BRIN has no order of xid8.
_TRANSACTION = "transaction_id::text::bigint"

# True below a position. Parameters: the result of `positions.sequences_before`, and the position's transaction id. No
# index is wanted here, and the expression of one would cost a tenth of reading a row.
BELOW = "(sequence <= %s OR (sequence <= %s AND transaction_id < %s::text::xid8))"

# The walk back from the newest version ends at the first version that is old enough.
HEADS_BEFORE = f"""
    SELECT wanted.root, head.version FROM unnest(%b::text[]) AS wanted (root)
    CROSS JOIN LATERAL (
        SELECT version FROM {TABLE}
        WHERE aggregate_root_id = wanted.root AND version IS NOT NULL
          AND {BELOW}
        ORDER BY version DESC LIMIT 1
    ) AS head
"""

STORED_BEFORE = f"""
    SELECT command_id, aggregate_root_id FROM {TABLE} JOIN unnest(%b::text[], %b::text[]) AS wanted (command, root)
    ON command_id = wanted.command AND aggregate_root_id = wanted.root
    WHERE {BELOW}
"""

# The next rows of a scan.
_LOOKED_AT = f"""
    SELECT {{read}} FROM {TABLE} WHERE ({{order}}) > (%s, %s) AND {{conditions}} ORDER BY {{order}} LIMIT %s
"""

# The first of these rows, up to a number of bytes. octet_length does not read values that are stored out of line.
_MEASURED = f"""
    SELECT {{columns}} FROM (
        SELECT {{columns}},
               sum({_BYTES}) OVER (ORDER BY {{order}} ROWS UNBOUNDED PRECEDING) - ({_BYTES}) AS bytes_before
        FROM ({_LOOKED_AT}) AS looked_at
    ) AS measured
    WHERE bytes_before < %s ORDER BY {{order}}
"""
_BY_AGGREGATE = {"order": "aggregate_root_id, version", "conditions": "version IS NOT NULL AND {conditions}"}
SCAN_STREAMS = _reading(_MEASURED.format(columns=_RECORD, read=_READ, **_BY_AGGREGATE))
SCAN_REFUSALS = _reading(
    _MEASURED.format(
        columns=f"{_RECORD}, sequence",
        read=f"{_RECORD}, sequence",
        order="created_at, sequence",
        conditions="version IS NULL AND {conditions}",
    )
)

# Does not measure, so it takes little more than half the time. Rows above most_bytes come without their contents, which
# bounds the size of the result.
_CONTENTS = {"events": _EVENTS, "metadata": "metadata"}
_SMALL = [
    f"CASE WHEN {_BYTES} <= {{most_bytes}} THEN {_CONTENTS[name]} END" if name in _CONTENTS else name
    for name in StreamRecord._fields
]
SCAN_SMALL_STREAMS = _reading(_LOOKED_AT.format(read=", ".join(_SMALL), **_BY_AGGREGATE))

# Reads no contents.
_KEYS = ", ".join(f"''::bytea AS {name}" if name in _CONTENTS else name for name in StreamRecord._fields)
SCAN_KEYS = _reading(_LOOKED_AT.format(read=_KEYS, **_BY_AGGREGATE))
SCAN_REFUSAL_KEYS = _reading(
    _LOOKED_AT.format(
        read=f"{_KEYS}, sequence", order="created_at, sequence", conditions="version IS NULL AND {conditions}"
    )
)

# The table, or its partitions: a partitioned table has neither pages nor, unless somebody runs ANALYZE, figures of the
# planner.
_PARTS = f"""
    SELECT c.oid, c.reltuples::float8 AS rows
    FROM (SELECT '{TABLE}'::regclass AS part UNION ALL SELECT relid FROM pg_partition_tree('{TABLE}')) AS parts
    JOIN pg_class AS c ON c.oid = part AND c.relkind = 'r'
"""

PAGES = f"""
    SELECT size / current_setting('block_size')::bigint, size
    FROM (SELECT coalesce(sum(pg_relation_size(oid)), 0)::bigint AS size FROM ({_PARTS}) AS parts) AS relation
"""

# The planner's figure costs nothing. It is -1 before the first ANALYZE.
ABOUT_ROWS = f"SELECT CASE WHEN min(rows) < 0 THEN -1 ELSE sum(rows)::bigint END FROM ({_PARTS}) AS parts"

LAST_SEQUENCE = f"SELECT coalesce(max(sequence), 0) FROM {TABLE}"

SAMPLE_IDS = f"SELECT aggregate_root_id FROM {TABLE} TABLESAMPLE SYSTEM (%s) WHERE version IS NOT NULL"

SAMPLE_REFUSALS = f"SELECT CASE WHEN version IS NULL THEN created_at END FROM {TABLE} TABLESAMPLE SYSTEM (%s)"

SAMPLE_TRANSACTIONS = f"SELECT {_TRANSACTION}, sequence FROM {TABLE} TABLESAMPLE SYSTEM (%s)"

# The cluster, its timeline, and the oid of the table of generations. A new timeline begins when a standby is promoted
# or a backup is recovered to a point in time. A dump that is restored on its own server gives the table another oid.
# NULL on a standby, which cannot record a generation, and on Aurora.
_CLUSTER = f"""
    CASE WHEN pg_is_in_recovery() OR to_regproc('aurora_version') IS NOT NULL THEN NULL
         ELSE (SELECT system_identifier FROM pg_control_system())::text || '/'
              || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || '{GENERATIONS}'::regclass::oid END
"""

# The server since its start or promotion: no two have started in the same microsecond. To ask for the cluster would
# take as long as storing some rows.
_SERVER = "extract(epoch FROM pg_postmaster_start_time())::text || pg_is_in_recovery()::text"

STATE = f"""
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, {_SERVER}, {_CLUSTER},
           (SELECT cluster FROM {GENERATIONS} ORDER BY generation DESC LIMIT 1),
           ARRAY(SELECT generation FROM {GENERATIONS} ORDER BY generation),
           ARRAY(SELECT after_sequence FROM {GENERATIONS} ORDER BY generation),
           EXISTS (SELECT FROM {CORRECTIONS})
"""

RECORD_CLUSTER = f"""
    INSERT INTO {GENERATIONS} (generation, after_sequence, cluster, begun_at)
    VALUES (0, 0, {_CLUSTER}, statement_timestamp()) ON CONFLICT DO NOTHING
"""

# Rows with transaction ids that this cluster has not assigned yet.
HAS_ROWS_FROM_ELSEWHERE = f"""
    SELECT EXISTS(
        SELECT FROM {TABLE} WHERE {_TRANSACTION} >= (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
    )
"""

# Waits for running writers and blocks new ones, so that every row is in one generation or the other.
LOCK_OUT_WRITERS = f"LOCK TABLE {TABLE} IN SHARE ROW EXCLUSIVE MODE"

_NUMBERS = f"pg_get_serial_sequence('{TABLE}', 'sequence')::regclass"
# NULL before the first number, and for a user who may not use the sequence, which nobody needs for inserting rows: its
# column is an identity.
_LAST_NUMBER = f"""
    CASE WHEN has_sequence_privilege({_NUMBERS}, 'USAGE, SELECT') THEN pg_sequence_last_value({_NUMBERS}) END
"""

# Logical replication copies rows, and leaves the sequence behind: free numbers of the old rows would be given. A user
# who may not use the sequence cannot see that.
ADVANCE_SEQUENCE = f"""
    SELECT setval({_NUMBERS}, newest) FROM (SELECT max(sequence) AS newest FROM {TABLE}) AS place
    WHERE has_sequence_privilege({_NUMBERS}, 'USAGE, SELECT') AND newest > coalesce({_LAST_NUMBER}, 0)
"""

# The time makes the number differ from those of other restores of the database.
BEGIN_GENERATION = f"""
    INSERT INTO {GENERATIONS} (generation, after_sequence, cluster, begun_at)
    SELECT greatest(newest.generation + 1, extract(epoch FROM clock_timestamp())::bigint),
           greatest((SELECT max(sequence) FROM {TABLE}), {_LAST_NUMBER}, 0),
           coalesce({_CLUSTER}, ''), statement_timestamp()
    FROM (SELECT coalesce(max(generation), 0) AS generation FROM {GENERATIONS}) AS newest
    WHERE newest.generation = %s
"""

# "sequence + 0" keeps the planner from using the index of the sequence and walking through the table.
_STRETCH = f"""
    {_TRANSACTION} >= %s::bigint AND {_TRANSACTION} < %s::bigint AND sequence + 0 > %s AND sequence + 0 <= %s
"""

SNAPSHOT = """
    SELECT pg_snapshot_xmax(now)::text::bigint,
           ARRAY(SELECT id::text::bigint AS id FROM pg_snapshot_xip(now) AS id ORDER BY id)
    FROM pg_current_snapshot() AS now
"""

# Streams in ranges of positions, without those of some types. "version + 0", and the materialized part without other
# conditions, keep the planner from using another index.
RANGE = f"({_STRETCH})"
RANGE_BY_SEQUENCE = f"({_TRANSACTION} = %s::bigint AND sequence > %s AND sequence <= %s)"
_WANTED = "version + 0 IS NOT NULL AND aggregate_root_type <> ALL(%s::text[])"
_IN_RANGES = f"SELECT {{columns}} FROM {TABLE} WHERE ({{ranges}}) AND {_WANTED}"

COUNT_IN_RANGES = f"SELECT count(*) FROM ({_IN_RANGES.replace('{columns}', '')} LIMIT %s) AS counted"

COUNT_BY_TRANSACTION = f"""
    SELECT {_TRANSACTION} AS id, count(*) FROM {TABLE}
    WHERE {_TRANSACTION} = ANY(%s::bigint[]) AND sequence + 0 > %s AND sequence + 0 <= %s AND {_WANTED}
    GROUP BY id ORDER BY id
"""

SEQUENCES_IN_RANGES = _IN_RANGES.replace("{columns}", "min(sequence), max(sequence)")

NEXT_SEQUENCES = f"""
    SELECT count(*), max(sequence) FROM ({_IN_RANGES.replace("{columns}", "sequence")} ORDER BY sequence LIMIT %s) AS found
"""  # noqa: E501

DIVIDE_RANGES = f"""
    WITH found AS MATERIALIZED ({_IN_RANGES.replace("{columns}", "aggregate_root_id")})
    SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY aggregate_root_id) FROM found
"""

HEADS_IN_RANGES = f"""
    WITH found AS MATERIALIZED ({_IN_RANGES.replace("{columns}", "aggregate_root_id, aggregate_root_type, version")})
    SELECT DISTINCT ON (aggregate_root_id) aggregate_root_id, aggregate_root_type, version FROM found
    WHERE aggregate_root_id >= %s AND (%s::text IS NULL OR aggregate_root_id < %s)
    ORDER BY aggregate_root_id, version DESC
"""

SETTLED = f"""
    SELECT aggregate_root_id, version, command_id, aggregate_root_type, command_type, created_at,
           CASE WHEN version IS NULL THEN events ELSE '' END, CASE WHEN version IS NULL THEN metadata ELSE '' END
    FROM {TABLE} WHERE {_STRETCH} LIMIT %s
"""

SINCE = f"""
    SELECT aggregate_root_type, count(*), min(created_at), min(sequence)
    FROM (SELECT aggregate_root_type, created_at, sequence FROM {TABLE} WHERE {_STRETCH} LIMIT %s) AS counted
    GROUP BY aggregate_root_type
"""
NEWEST_GENERATION = f"SELECT coalesce(max(generation), 0) FROM {GENERATIONS}"

GENERATIONS_BEGUN = f"SELECT generation, after_sequence FROM {GENERATIONS} ORDER BY generation"

# Positions are sorted instead of rows. If there are more of them than the last parameter, the result is one row with
# their number only.
FEED = _reading(f"""
    WITH candidate AS MATERIALIZED (
        SELECT {_TRANSACTION} AS transaction, sequence FROM {TABLE}
        WHERE {_STRETCH} AND ({_TRANSACTION} > %s::bigint OR sequence + 0 > %s) LIMIT %s
    )
    SELECT candidates.number, place.transaction, place.sequence, stream.*
    FROM (SELECT count(*) AS number FROM candidate) AS candidates
    LEFT JOIN LATERAL (SELECT * FROM candidate ORDER BY transaction, sequence LIMIT %s) AS place
        ON candidates.number <= %s
    LEFT JOIN LATERAL (SELECT {_READ} FROM {TABLE} WHERE sequence = place.sequence LIMIT 1) AS stream ON true
    ORDER BY place.transaction, place.sequence
""")

FEED_WITHIN = _reading(f"""
    SELECT sequence, {_READ} FROM {TABLE}
    WHERE sequence > %s AND sequence <= %s AND {_TRANSACTION} = %s::bigint ORDER BY sequence LIMIT %s
""")

# The oldest open transaction is that of any database of the server. Only transactions that write have an id.
HOLDING_BACK = """
    SELECT statement_timestamp() - xact_start, pid, query, application_name, state, coalesce(datname, '')
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND xact_start < statement_timestamp() - %s::interval
    UNION ALL
    SELECT statement_timestamp() - prepared, NULL, 'PREPARE TRANSACTION ' || quote_literal(gid), '', 'prepared',
           database
    FROM pg_prepared_xacts WHERE prepared < statement_timestamp() - %s::interval
    ORDER BY 1 DESC
"""

CLAIM = f"SELECT number, epoch, buckets FROM {SHARD}"

HAS_STREAMS = f"SELECT EXISTS(SELECT FROM {TABLE})"

# The table is locked while a batch is written, so `STOP_WRITERS` waits for writers that rely on this record. Unlike a
# row lock, this writes nothing to the row or the WAL. LOCK TABLE takes no snapshot, so the record is read as it is
# after the lock, at every isolation level.
OPEN_CLAIM = (f"LOCK TABLE {SHARD} IN ROW SHARE MODE", f"SELECT number, epoch, {_SERVER} FROM {SHARD}")

# For a caller's transaction, whose snapshot may be older than a table lock: an outdated row cannot be locked.
OPEN_CLAIM_WITHIN = f"SELECT number, epoch, {_SERVER} FROM {SHARD} FOR SHARE"

# The first statement of a transaction that changes the buckets: it waits for running batches and blocks new ones.
STOP_WRITERS = f"LOCK TABLE {SHARD} IN EXCLUSIVE MODE"

RECORD_CLAIM = f"""
    INSERT INTO {SHARD} (id, number, epoch, buckets, recorded_at)
    VALUES (1, %s, %s, %s::smallint[], statement_timestamp()) ON CONFLICT DO NOTHING
"""

# Changes no buckets, so it waits neither for writers nor for another process that does the same.
CONFIRM_CLAIM = f"""
    UPDATE {SHARD} SET epoch = %s WHERE id IN (SELECT id FROM {SHARD} WHERE epoch < %s FOR UPDATE SKIP LOCKED)
"""

PRUNE_REFUSALS = f"""
    DELETE FROM {TABLE} WHERE sequence = ANY(ARRAY(
        SELECT sequence FROM {TABLE} WHERE version IS NULL AND created_at < %s
        ORDER BY created_at LIMIT %s FOR UPDATE SKIP LOCKED
    ))
"""

_CORRECTION = "id, aggregate_root_id, version, events, corrected_by, reason, corrected_at"

# Corrections are made one after the other: when a number is visible, all lower ones are. Readers do not wait.
LOCK_OUT_CORRECTORS = f"LOCK TABLE {CORRECTIONS} IN SHARE ROW EXCLUSIVE MODE"

HAS_CORRECTIONS = f"SELECT EXISTS (SELECT FROM {CORRECTIONS})"

LAST_CORRECTION = f"""
    SELECT coalesce((SELECT id FROM {CORRECTIONS} WHERE aggregate_root_id = %s AND version = %s
                     ORDER BY id DESC LIMIT 1), 0)
"""

CORRECT = f"""
    INSERT INTO {CORRECTIONS} (aggregate_root_id, version, events, corrected_by, reason, corrected_at)
    SELECT aggregate_root_id, version, %b::bytea, %s, %s, statement_timestamp() FROM {TABLE}
    WHERE aggregate_root_id = %s AND version = %s
    RETURNING {_CORRECTION}
"""

CORRECTIONS_OF = f"SELECT {_CORRECTION} FROM {CORRECTIONS} WHERE aggregate_root_id = %s ORDER BY id"

CORRECTED_SINCE = f"SELECT id, aggregate_root_id, version FROM {CORRECTIONS} WHERE id > %s ORDER BY id"

ORIGINAL = f"SELECT {_RECORD} FROM {TABLE} WHERE aggregate_root_id = %s AND version = %s"
