"""Run a page's python blocks, one after the other in one namespace, with commands executed inline, in a database of
its own.

Started by `test_code_blocks` in the directory of a project: ``python -m tests.docs.run_page PAGE``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command
from django.test.utils import setup_databases, teardown_databases

from tests.docs.blocks import Block, blocks


def main(page: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    call_command("check")
    databases = setup_databases(verbosity=0, interactive=False, serialized_aliases=())
    try:
        run(page)
    finally:
        teardown_databases(databases, verbosity=0)


def run(page: Path) -> None:
    from enode_django.testing import inline

    namespace: dict[str, Any] = {"__name__": "__page__"}
    with inline():
        for block in blocks(page):
            if block.runs and block.option("file") is None and block.option("append") is None:
                execute(block, namespace)


def execute(block: Block, namespace: dict[str, Any]) -> None:
    """Run one block. A traceback names its page and line."""
    exec(compile(block.at_its_lines, str(block.page), "exec", dont_inherit=True), namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
