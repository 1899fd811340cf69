"""The evidence that is kept of a failed round, whose servers end with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
from psycopg import sql

from chaos.names import NODES
from chaos.world import World

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename ~ '^(enode_django|bank|notes)_'"


def keep_logs(directory: Path, run: Path) -> None:
    """Copy the logs of the processes to the directory of the checker."""
    shutil.copytree(directory / "logs", run / "logs", dirs_exist_ok=True)


def keep_evidence(world: World) -> None:
    """Write every table of each database as CSV, and copy the broker's files and the servers' logs."""
    services, evidence = world.services, world.run / "evidence"
    for number, url in enumerate(dict.fromkeys([services.read_database, *services.shards])):
        directory = evidence / f"database-{number}"
        directory.mkdir(parents=True)
        _copy_tables(url, directory)
    if services.uses_broker:
        shutil.copytree(services.broker.queue_directory, evidence / "queue")
        shutil.copy(services.broker.directory / "server.log", world.run / "logs" / "broker.log")
    for name, node in zip(NODES, services.cluster.servers if services.cluster else (), strict=False):
        shutil.copy(node.directory / "server.log", world.run / "logs" / f"{name}.log")
    for number, server in enumerate(services.postgres):
        shutil.copy(server.directory / "server.log", world.run / "logs" / f"postgres-{number}.log")


def _copy_tables(url: str, directory: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for (table,) in connection.execute(TABLES).fetchall():
            copying = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv, HEADER)").format(sql.Identifier(table))
            with (directory / f"{table}.csv").open("wb") as file, connection.cursor().copy(copying) as rows:
                for row in rows:
                    file.write(row)
