"""``manage.py enode unique``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import EnodeError
from enode_django.management.auditing import add_reason, audited
from enode_django.management.output import PrintableCommand
from enode_django.operating.unique_values import Duplicate, UniqueRebuild
from enode_django.runtime import make_store

UNIQUE_VALUES = "unique values"


class Command(PrintableCommand):
    help = (
        "Makes the unique values agree with the event store, while workers go on: claims those of stored aggregates, "
        "frees those that their aggregates do not have any more, and lists those that two aggregates have. To be run "
        "when fields of stored aggregates become unique, and after a restore. The exit status is 1 if two aggregates "
        "have one value."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["rebuild"], help="what to do")
        add_reason(parser)

    def handle(self, *, action: str, reason: str, **options: Any) -> None:
        duplicates = freed = 0
        try:
            rebuild = UniqueRebuild(make_store())
            with audited(action, UNIQUE_VALUES, "all", reason=reason) as details:
                for found in rebuild.run():
                    if isinstance(found, Duplicate):
                        duplicates += 1
                        self.stdout.write(f"{found.name}: {found.other} has the value of {found.holder}")
                    else:
                        freed += 1
                        self.stdout.write(f"{found.name}: freed what {found.aggregate_root_id} does not have any more")
                details.append(f"{rebuild.aggregates} aggregates, {freed} values freed, {duplicates} duplicates")
        except (EnodeError, *DATABASE_ERRORS) as error:
            raise CommandError(f"{error}; run it again, it begins anew") from error
        self.stdout.write(f"looked into {rebuild.aggregates} aggregates, freed {freed} values")
        if duplicates:
            raise CommandError(
                f"{duplicates} values have two aggregates; change the first one of each line, which has not claimed "
                "it, and run it again"
            )
