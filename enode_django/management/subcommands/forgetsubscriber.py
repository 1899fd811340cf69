"""``manage.py enode forgetsubscriber``."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from enode_django.conf import conf
from enode_django.eventing.checkpoints import forget_subscriber, subscribed
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import checkpoint_database, key_of
from enode_django.management.auditing import add_reason, audited
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand
from enode_django.operating.actions import SUBSCRIBER
from enode_django.rebuilding.target import forget_rebuilds
from enode_django.runtime import make_transport_if_any, running_subscribers


class Command(PrintableCommand):
    help = (
        "Forgets a subscriber that was removed from the code, or moved to another database: deletes its checkpoints, "
        "its parked events, its deadlines, its consumer group, for which the events topic would keep every message, "
        "and the tables that its rebuilds have left in schemas of their own. The tables of its models stay."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the name that the subscriber is stored under")
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="the database of its checkpoints; by default as the project's routers say for the model Checkpoint",
        )
        add_reason(parser)

    def handle(self, *, name: str, database: str | None, reason: str, **options: Any) -> None:
        declared = {key_of(one): one for one in (*subscribers.all(), *running_subscribers())}
        alias, owner = database or checkpoint_database(), declared.get(name)
        if owner is not None and owner.database == alias:
            now = "" if owner.name == name else f" as {owner.name}"
            raise CommandError(f"{name} is still declared{now} and would begin anew; remove it from the code first")
        with errors_shown():
            if owner is None:
                with closing(make_transport_if_any()) as transport:
                    transport.retire_group(name, conf().SUBSCRIBERS.TOPIC)
            known = subscribed(alias)
            with audited("forget", SUBSCRIBER, name, reason=reason) as details:
                forget_rebuilds(alias, name)
                deleted = forget_subscriber(alias, name)
                details.append(f"{deleted} rows in {alias}")
        if not deleted and name not in known:
            others = ", ".join(sorted(set(known) - declared.keys())) or "none"
            raise CommandError(
                f"the database {alias!r} has no subscriber {name!r}; the subscribers that it has and the code lacks "
                f"are: {others}"
            )
        rest = "and its consumer group" if owner is None else f"of the time when it was in {alias}"
        self.stdout.write(f"forgot {name}: {deleted} rows, {rest}")
