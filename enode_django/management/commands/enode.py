"""``manage.py enode``: commands whose names are too general to stand beside those of other apps."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from enode_django.management.output import PrintableOutput

SUBCOMMANDS = {
    "buildsnapshots": "makes the snapshots that are due",
    "eventschemas": "finds changes that make stored events unreadable",
    "exportevents": "adds new events to an archive of Parquet files",
    "forgetsubscriber": "forgets a subscriber removed from the code",
    "groups": "makes two groups of users: to look, and to act",
    "jobs": "lists the batch jobs, shows or stops one",
    "keepsubscriber": "keeps a subscriber that the code lacks, for now",
    "parked": "lists, retries, skips or corrects parked events",
    "queue": "shows and changes topics, groups and messages",
    "rehearse": "replays aggregates with new code before it goes live",
    "status": "shows the state of all parts, and their problems",
    "unique": "claims the unique values of stored aggregates",
}
"""The sub-commands, each with a line for the list."""


class Command(BaseCommand):
    help = "Operates commands, events and subscribers. Each sub-command has its own --help."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the sub-command, which has its own options, checks and exit codes. Only its module is imported."""
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
            out = PrintableOutput(options.get("stdout") or sys.stdout)  # print_help fails without a reader
            out.write(self.create_parser("manage.py", "enode").format_help())
            out.flush()
            return None
        output: str | None = load(subcommand).execute(*args, **options)
        return output


def load(name: str) -> BaseCommand:
    command: BaseCommand = import_module(f"enode_django.management.subcommands.{name}").Command()
    return command
