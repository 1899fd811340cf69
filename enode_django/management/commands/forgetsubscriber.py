"""``manage.py forgetsubscriber``."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from enode_django.conf import conf
from enode_django.eventing.checkpoints import forget_subscriber
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import checkpoint_database
from enode_django.exceptions import EnodeError
from enode_django.runtime import make_transport


class Command(BaseCommand):
    help = (
        "Forgets a subscriber that was removed from the code: its checkpoints, what it has parked, and its consumer "
        "group, for which the events topic would else keep every message. The rows of its models stay."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the stable name of the subscriber")
        parser.add_argument("--database", help="where its checkpoints are; by default where those without rows are")

    def handle(self, *, name: str, database: str | None, **options: Any) -> None:
        if any(subscriber.name == name for subscriber in subscribers.all()):
            raise CommandError(f"{name} is still declared: it would begin anew; remove it from the code first")
        try:
            deleted = forget_subscriber(database or checkpoint_database(), name)
            with closing(make_transport()) as transport:
                transport.retire_group(name, conf().EVENT_TOPIC)
        except (EnodeError, DatabaseError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"forgot {name}: {deleted} rows, and its consumer group")
