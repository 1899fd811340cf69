"""``manage.py bankdemo``."""

from __future__ import annotations

import contextlib
import signal
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, OperationalError
from rich.console import Console

from enode_django.conf import conf
from enode_django.exceptions import TransportUnavailable
from sample_project.bank.demo.producers import ProducerFailed
from sample_project.bank.demo.run import Demo, DemoFailed, new_workload

COUNTS = ("accounts", "commands", "producers", "processes")


class Command(BaseCommand):
    help = "Sends deposits, withdrawals and transfers from several processes, and verifies what was stored and shown."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--accounts", type=int, default=2_000)
        parser.add_argument("--commands", type=int, default=20_000, help="deposits and withdrawals, in all")
        parser.add_argument("--transfers", type=int, default=500, help="transfers between two accounts")
        parser.add_argument("--producers", type=int, default=2, help="processes that send")
        parser.add_argument("--processes", type=int, default=2, help="worker processes of each role")
        parser.add_argument("--no-processors", action="store_true", help="use those that run already, start none")

    def handle(self, **options: Any) -> None:
        for name in COUNTS:
            if options[name] < 1:
                raise CommandError(f"--{name} must be at least 1, got {options[name]}")
        if options["transfers"] < 0:
            raise CommandError(f"--transfers must be at least 0, got {options['transfers']}")
        if options["transfers"] and options["accounts"] < 2:
            raise CommandError("transfers need two accounts; use --accounts 2 or more, or --transfers 0")
        console = Console(file=options.get("stdout"), no_color=options["no_color"] or None, highlight=False)
        try:
            with _exiting_on(signal.SIGTERM, signal.SIGHUP):
                self._run(console, **options)
        except KeyboardInterrupt:
            console.print("\nstopped; nothing is left running")
            raise SystemExit(130) from None
        except (DemoFailed, ProducerFailed) as error:
            raise CommandError(str(error)) from error
        except OperationalError as error:
            raise CommandError(f"PostgreSQL cannot be reached; see DATABASE_URL: {error}") from error
        except TransportUnavailable as error:
            raise CommandError(f"the queue cannot be reached; see QUEUE_URL: {error}") from error

    def _run(
        self,
        console: Console,
        *,
        accounts: int,
        commands: int,
        transfers: int,
        producers: int,
        processes: int,
        no_processors: bool,
        **options: Any,
    ) -> None:
        for alias in {DEFAULT_DB_ALIAS: None, **dict.fromkeys(conf().EVENT_STORE.DATABASES)}:
            call_command("migrate", database=alias, verbosity=0, interactive=False)
        counts = {"account": accounts, "command": commands, "transfer": transfers, "producer": producers}
        if not no_processors:
            counts["worker process"] = 2 * processes
        console.print(f"A bank: {', '.join(_counted(noun, count) for noun, count in counts.items())}\n")
        workload = new_workload(accounts, commands, producers, transfers)
        Demo(workload, None if no_processors else processes, console).run()
        console.print("\nmake sample shows the pages: the dashboard, the event browser, the tellers' page.")


def _counted(noun: str, count: int) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


@contextlib.contextmanager
def _exiting_on(*numbers: signal.Signals) -> Iterator[None]:
    """Raise SystemExit on a signal inside the block, so that children are ended."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
