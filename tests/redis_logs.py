"""The log of a Redis whose machine crashes: what it wrote since some moment is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import redis

from sample_project.embedded import Redis

DEADLINE = 60.0


def written_log(server: Redis) -> dict[Path, bytes]:
    """Return the files of the log when all is written that was answered: with ``appendfsync everysec`` and a busy disk,
    Redis answers before. Since Redis 7 there are several."""
    with redis.Redis.from_url(server.url) as client:
        deadline = time.monotonic() + DEADLINE
        while (log := client.info("persistence"))["aof_buffer_length"] or log["aof_pending_bio_fsync"]:
            assert time.monotonic() < deadline, log
    files = {path: path.read_bytes() for path in server.directory.rglob("appendonly.aof*")}
    assert files
    return files


def crash(server: Redis, log: Mapping[Path, bytes]) -> None:
    """Kill Redis and start it with the ``log`` of an earlier moment."""
    server.kill()
    for path, content in log.items():
        path.write_bytes(content)
    server.start()
