"""Rows of snapshots as the tasks of a job hand them to the writer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow

from enode_django.models import Snapshot

AT = datetime(2026, 5, 4, 3, 2, 1, 654321, tzinfo=UTC)


def row(
    id: str, version: int, *, alias: str = "default", payload: bytes | None = b"p", failure: str = ""
) -> dict[str, Any]:
    return {
        "alias": alias,
        "aggregate_root_id": id,
        "aggregate_root_type": "spark.Thing",
        "version": version,
        "fingerprint": "f" * 32,
        "payload": payload,
        "created_at": AT,
        "failure": failure or None,
    }


def batch(*rows: dict[str, Any]) -> pyarrow.RecordBatch:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    at = pyarrow.array(columns["created_at"], pyarrow.timestamp("us", tz="UTC"))
    return pyarrow.RecordBatch.from_pydict({**columns, "created_at": at})


def published(alias: str = "default") -> dict[str, int]:
    return dict(Snapshot.objects.using(alias).values_list("aggregate_root_id", "version"))
