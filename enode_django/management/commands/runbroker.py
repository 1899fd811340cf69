"""``manage.py runbroker``."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from enode_django.broker_settings import broker_options
from enode_django.conf import conf
from enode_django.equeue.broker.options import EVERY_WRITE, INTERVAL
from enode_django.equeue.broker.server import run
from enode_django.exceptions import ConfigurationError, QueueError
from enode_django.processors.logs import log_to_console


class Command(BaseCommand):
    help = "Runs the broker, which keeps the messages of the queue, until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--listen", help="where to take connections, like tcp://127.0.0.1:7625; port 0: any")
        parser.add_argument("--directory", type=Path, help="where messages are kept")

        parser.add_argument("--flush", choices=[INTERVAL, EVERY_WRITE], help="when what is sent counts as stored")

    def handle(
        self, *, listen: str | None, directory: Path | None, flush: str | None, verbosity: int, **options: Any
    ) -> None:
        log_to_console(verbosity)
        try:
            broker = broker_options(conf(), listen=listen, directory=directory, flush=flush)
            status = run(broker, lambda location: self._say_ready(location, broker.directory))
        except (ConfigurationError, QueueError) as error:
            raise CommandError(f"{error}\nsee ENODE['BROKER'] in the settings") from error
        if status:
            raise SystemExit(status)

    def _say_ready(self, location: str, directory: Path) -> None:
        self.stdout.write(f"broker ready at {location}, messages in {directory}; Ctrl-C stops")
        self.stdout.flush()
