"""``manage.py runbroker``."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from enode_django.conf import conf
from enode_django.conf.groups import IMMEDIATE
from enode_django.equeue.broker.options import EVERY_WRITE, INTERVAL
from enode_django.equeue.broker.server import run
from enode_django.exceptions import ConfigurationError, QueueError
from enode_django.management.observing import add_port, listening, observed_broker
from enode_django.management.output import PrintableCommand
from enode_django.management.systems import check_linux
from enode_django.processes.children import receive_signals
from enode_django.processors.broker_options import broker_options
from enode_django.processors.logs import log_to_console


class Command(PrintableCommand):
    help = "Runs the broker, which keeps the messages of the queue, until SIGTERM or SIGINT."
    is_service = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--listen", help="the address to listen on, such as tcp://127.0.0.1:7625; port 0: any")
        parser.add_argument("--directory", type=Path, help="the directory of the messages")

        parser.add_argument("--flush", choices=[INTERVAL, EVERY_WRITE], help="when a sent message counts as stored")
        parser.add_argument(
            "--accept-loss",
            action="store_true",
            help="start even if no checkpoint can be used, so that topics, groups and offsets are lost",
        )
        add_port(parser, "metrics", "/metrics, in the format of Prometheus,")
        add_port(parser, "health", "/live and /ready, and /metrics if prometheus-client is installed,")

    def handle(
        self,
        *,
        listen: str | None,
        directory: Path | None,
        flush: str | None,
        accept_loss: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        check_linux("runbroker")
        receive_signals()
        log_to_console(verbosity)
        if conf().QUEUE.BACKEND == IMMEDIATE:
            raise CommandError("ENODE['QUEUE'] names no queue: no process would use this broker")
        try:
            broker = broker_options(conf(), listen=listen, directory=directory, flush=flush, accept_loss=accept_loss)
            places = {name: listening(options, name) for name in ("health", "metrics")}
            with observed_broker(**places, say=self.say) as observed:

                def on_ready(location: str) -> None:
                    self.say(f"broker ready at {location}, messages in {broker.directory}; Ctrl-C stops")
                    observed.ready()

                on_figures = observed.measured if observed.shows_figures else None
                status = run(
                    broker, on_ready, on_turn=observed.turned, on_stop=observed.stopping, on_figures=on_figures
                )
        except (ConfigurationError, QueueError) as error:
            raise CommandError(f"{error}\nsee ENODE['BROKER'] in the settings") from error
        if status:
            raise SystemExit(status)
