"""``manage.py enode status``."""

from __future__ import annotations

import json
import math
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from enode_django.exceptions import ConfigurationError
from enode_django.management.output import PrintableCommand
from enode_django.management.tables import write_table
from enode_django.monitoring import PARTS, Health, Part, gather
from enode_django.monitoring.gathering import TIMEOUT


class Command(PrintableCommand):
    help = "Shows the state and the problems of processors, queue, event store, subscribers and jobs."
    requires_system_checks: list[str] = []  # a probe must be quick

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object")
        parser.add_argument(
            "--only", type=_parts, default=PARTS, metavar="PART[,PART]", help=f"only these parts, of {', '.join(PARTS)}"
        )
        parser.add_argument(
            "--timeout", type=_seconds, default=TIMEOUT, help=f"wait at most so many seconds ({TIMEOUT:g})"
        )

    def handle(self, *, only: list[str], timeout: float, **options: Any) -> None:
        try:
            status = gather(only, timeout=timeout)
        except ConfigurationError as error:  # not 1, which means degraded
            raise CommandError(str(error), returncode=int(Health.BAD)) from error
        if options["json"]:
            self.stdout.write(json.dumps(status.as_map(), cls=DjangoJSONEncoder))
        else:
            for part in status.parts:
                self._write(part)
            self._line("all in all: ", status.health.word, status.health)
        if status.health:
            raise SystemExit(int(status.health))

    def _write(self, part: Part) -> None:
        self._line(f"{part.name}: ", part.health.word, part.health)
        for health, reason in part.problems:
            self._line("  ", reason, health)
        write_table(self.stdout, [{name: _cell(value) for name, value in row._asdict().items()} for row in part.rows])
        self.stdout.write("")

    def _line(self, start: str, text: str, health: Health) -> None:
        styles = {Health.OK: self.style.SUCCESS, Health.DEGRADED: self.style.WARNING, Health.BAD: self.style.ERROR}
        self.stdout.write(start, ending="")
        self.stdout.write(text, styles[health])


def _cell(value: Any) -> Any:
    return [f"{key}={item}" for key, item in value.items()] if isinstance(value, Mapping) else value


def _parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PARTS:
            raise ArgumentTypeError(f"{name!r} is not a part of the status; there are {', '.join(PARTS)}")
    return names


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
