"""``manage.py startaggregate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser

from enode_django.management.output import PrintableCommand
from enode_django.management.scaffold import names_for, plan
from enode_django.management.scaffold_fields import KINDS, parse_fields


class Command(PrintableCommand):
    help = "Writes an aggregate with its commands and events, a projection with its model, and their tests."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("app", help="the label of an installed app")
        parser.add_argument("name", help="the name of the aggregate's class, such as Order")
        parser.add_argument(
            "--fields",
            nargs="+",
            default=["title:str"],
            metavar="NAME:TYPE",
            help=f"the aggregate's fields (default: title:str); the types are {', '.join(KINDS)}",
        )

    def handle(self, *, app: str, name: str, fields: list[str], **options: Any) -> None:
        try:
            config = apps.get_app_config(app)
        except LookupError as error:
            raise CommandError(f"{error} Make it with manage.py startapp, and add it to INSTALLED_APPS.") from error
        parsed = parse_fields(fields)
        names = names_for(config, name)
        planned = plan(config, names, parsed)
        planned.carry_out()
        for path in planned.new:
            self.stdout.write(f"written: {_shown(path)}")
        for path in planned.changed:
            self.stdout.write(f"added to: {_shown(path)}")
        self.stdout.write(f"next: manage.py makemigrations {app}; manage.py migrate; manage.py test {config.name}")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
