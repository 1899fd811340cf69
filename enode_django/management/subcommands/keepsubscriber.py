"""``manage.py enode keepsubscriber``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import checkpoint_database, key_of
from enode_django.exceptions import UnknownSubscriber
from enode_django.management.auditing import add_reason, audited
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand
from enode_django.operating.actions import SUBSCRIBER


class Command(PrintableCommand):
    help = (
        "Keeps the stored subscription of a subscriber that the code lacks, or is going to lack: runprocessors starts "
        "without it. The events topic keeps the messages that the subscriber has not handled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the name of the subscriber")
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="the database of its checkpoints; by default as its code or the project's routers say",
        )
        parser.add_argument("--no-longer", action="store_true", help="undo this")
        add_reason(parser)

    def handle(self, *, name: str, database: str | None, no_longer: bool, reason: str, **options: Any) -> None:
        key, alias = name, database or checkpoint_database()
        with suppress(UnknownSubscriber):  # code that is going to remove the subscriber still has it
            subscriber = subscribers.get(name)
            key, alias = key_of(subscriber), database or subscriber.database
        with errors_shown():
            with audited("keep no longer" if no_longer else "keep", SUBSCRIBER, key, reason=reason) as details:
                is_there = checkpoints.keep(alias, key, is_kept=not no_longer)
                details.append(f"in {alias}" if is_there else "there is no such subscription")
            known = [] if is_there else checkpoints.subscribed(alias)
        if not is_there:
            others = ", ".join(sorted(known)) or "none"
            raise CommandError(
                f"the database {alias!r} has no subscription of {name!r}; it has those of {others}; --database names "
                "another"
            )
        self.stdout.write(f"{name} is {'no longer kept' if no_longer else 'kept'}")
