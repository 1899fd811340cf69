"""The commands that pages show exist, with the actions and options that are shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, get_commands, load_command_class
from django.core.management.base import BaseCommand

from tests.docs.blocks import blocks, commands
from tests.docs.pages import PAGES, name

MANAGE = re.compile(r"^(?:[A-Z_]+=\S+ )*python manage\.py (?P<rest>[^#|>]*)")


def shown(page: Path) -> Iterator[list[str]]:
    for block in blocks(page):
        if block.language == "console":
            for command in commands(block):
                if match := MANAGE.match(command.line.replace("…", "x")):
                    yield shlex.split(match["rest"])


WITH_COMMANDS = [page for page in PAGES if any(shown(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_a_command_takes_what_the_page_gives_it(page: Path) -> None:
    for command, *arguments in shown(page):
        known = get_commands()[command]
        loaded = known if isinstance(known, BaseCommand) else load_command_class(known, command)
        try:
            loaded.create_parser("manage.py", command).parse_args(arguments)
        except CommandError as error:
            pytest.fail(f"manage.py {command} {shlex.join(arguments)}: {error}")
