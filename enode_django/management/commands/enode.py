"""``manage.py enode``: the commands whose names would be too general beside those of other apps."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

SUBCOMMANDS = {
    "buildsnapshots": "makes the snapshots that are due",
    "eventschemas": "finds changes with which events could not be read",
    "exportevents": "adds what is new to an archive of Parquet files",
    "forgetsubscriber": "forgets a subscriber that the code has no more",
    "groups": "makes two groups of users: one that looks, one on call",
    "jobs": "lists the batch jobs, or has one cancelled",
    "keepsubscriber": "keeps a subscriber that the code has not, for now",
    "parked": "lists, tries again, skips or corrects parked events",
    "queue": "shows topics, groups and messages; sets them right",
    "status": "shows the state of all parts, and what is wrong",
}
"""What each does, in a line."""


class Command(BaseCommand):
    help = "Looks after commands, events and subscribers. Each sub-command has a --help of its own."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the sub-command, which has options, checks and exit codes of its own; no other one is imported."""
        program, own, *arguments = argv
        if arguments and arguments[0] in SUBCOMMANDS:
            name, *rest = arguments
            load(name).run_from_argv([program, f"{own} {name}", *rest])
        else:
            super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(title="sub-commands", dest="subcommand", metavar="subcommand")
        for name, does in SUBCOMMANDS.items():
            actions.add_parser(name, help=does, parents=[load(name).create_parser("", name)], add_help=False)

    def execute(self, *args: Any, subcommand: str | None, **options: Any) -> str | None:
        """List the sub-commands, or run the one that `call_command` names, with its options."""
        if subcommand is None:
            self.print_help("manage.py", "enode")
            return None
        output: str | None = load(subcommand).execute(*args, **options)
        return output


def load(name: str) -> BaseCommand:
    command: BaseCommand = import_module(f"enode_django.management.subcommands.{name}").Command()
    return command
