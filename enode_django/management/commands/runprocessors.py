"""``manage.py runprocessors``."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.utils import autoreload

from enode_django.conf import Conf, conf
from enode_django.exceptions import ConfigurationError, QueueError
from enode_django.models import EventStream
from enode_django.processors.cores import usable_cores
from enode_django.processors.logs import log_to_console
from enode_django.processors.supervisor import Supervisor
from enode_django.runtime import make_store, make_transport

logger = logging.getLogger("enode_django.supervisor")

CONNECTIONS_BESIDE_MAILBOXES = 2
"""A worker's puller and pruner use the store, too."""


class Command(BaseCommand):
    help = "Handles commands: runs worker processes with their mailboxes until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, help="worker processes; by default one per core it may use")
        parser.add_argument("--reload", action="store_true", help="start anew when code changes (for development)")
        parser.add_argument("--report", type=Path, help="a file that is kept up to date with figures, as JSON")

    def handle(self, *, reload: bool, **options: Any) -> None:
        if reload:
            autoreload.run_with_reloader(self.supervise, **options)
        else:
            self.supervise(**options)

    def supervise(self, *, processes: int | None, report: Path | None, verbosity: int, **options: Any) -> None:
        log_to_console(verbosity)
        current = conf()
        count = (current.PROCESSES or usable_cores()) if processes is None else processes
        if count < 1:
            raise CommandError(f"--processes must be at least 1, got {count}")
        queues = self._prepare_topics(current)
        self._say_connections(current, count)
        supervisor = Supervisor(current, count, queues, verbosity=verbosity, on_report=_Reporter(report))
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: supervisor.stop())
        # Else the reloader has the main thread and the signals; when it exits, the workers are told to drain.
        self.stdout.write(f"{count} workers, {queues} queues of topic {current.COMMAND_TOPIC!r}; Ctrl-C stops")
        status = supervisor.run()
        if status:
            raise SystemExit(status)

    def _prepare_topics(self, current: Conf) -> int:
        try:
            transport = make_transport()
            make_store()
            transport.create_topic(current.EVENT_TOPIC, current.QUEUES_PER_TOPIC)
            queues = transport.create_topic(current.COMMAND_TOPIC, current.QUEUES_PER_TOPIC)
            transport.close()
        except (QueueError, ConfigurationError) as error:
            raise CommandError(f"{error}\nsee ENODE['QUEUE'] in the settings") from error
        return queues

    def _say_connections(self, current: Conf, processes: int) -> None:
        alias = current.event_databases[0]
        connection = connections[alias]
        each = current.COMMAND_MAILBOXES + current.EVENT_MAILBOXES + CONNECTIONS_BESIDE_MAILBOXES
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT current_setting('max_connections')::int, to_regclass(%s) IS NULL",
                    [EventStream._meta.db_table],
                )
                limit, table_is_missing = cursor.fetchone()
        except DatabaseError as error:
            raise CommandError(f"the event database {alias!r} cannot be asked: {error}") from error
        finally:
            connections.close_all()
        if table_is_missing:
            raise CommandError(
                f"the event database {alias!r} has no table {EventStream._meta.db_table!r}; "
                f"run manage.py migrate{'' if alias == DEFAULT_DB_ALIAS else f' --database {alias}'}"
            )
        text = f"up to {processes} × {each} = {processes * each} connections to {alias!r}, whose server allows {limit}"
        self.stdout.write(text if processes * each <= limit else self.style.WARNING(f"{text}: too many"))


class _Reporter:
    """Writes aside and renames, so that a reader never sees half a report."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: dict[str, Any] = {}

    def __call__(self, report: dict[str, Any]) -> None:
        if self._path is None or report == self._last:
            return
        self._last = report
        aside = self._path.with_suffix(f".{os.getpid()}")
        try:
            aside.write_text(json.dumps(report))
            aside.replace(self._path)
        except OSError as error:  # a full disk must not end the workers
            logger.warning("the report cannot be written: %s", error)
