"""The targets of the writer: the staged columns, and the SQL that publishes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from enode_django.exceptions import ConfigurationError
from enode_django.repository import postgres


class Target(NamedTuple):
    """``columns`` has the names and PostgreSQL types of a row without the alias of its database. In ``publish``,
    ``{staged}`` stands for the staging table; it may run twice."""

    columns: Mapping[str, str]
    publish: str


SNAPSHOTS = "snapshots"

_TARGETS = {
    # A row with a failure says why an aggregate has no snapshot. The ids have the database's collation, as in
    # `PostgresSnapshotStore.save`, so that both take their locks in the same order.
    SNAPSHOTS: Target(
        {
            "aggregate_root_id": "text",
            "aggregate_root_type": "text",
            "version": "bigint",
            "fingerprint": "text",
            "payload": "bytea",
            "created_at": "timestamptz",
            "failure": "text",
        },
        f"""
        INSERT INTO {postgres.TABLE} AS known ({postgres.COLUMNS})
        SELECT DISTINCT ON (aggregate_root_id) {postgres.COLUMNS} FROM {{staged}} WHERE failure IS NULL
        ORDER BY aggregate_root_id, version DESC {postgres.ON_CONFLICT}
        """,
    )
}


def target_of(kind: str) -> Target:
    try:
        return _TARGETS[kind]
    except KeyError:
        raise ConfigurationError(f"nothing of the kind {kind!r} can be written; known are {sorted(_TARGETS)}") from None
