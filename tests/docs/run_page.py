"""Run the python blocks of pages, those of each page one after the other in one namespace, with commands executed
inline, in a process of its own that finds an empty database.

Started by `test_code_blocks` in the directory of a project: ``python -m tests.docs.run_page PAGE…``.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command
from django.db import connections
from django.test.utils import setup_databases, teardown_databases

from tests.docs.blocks import Block, blocks


def main(pages: list[Path]) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    call_command("check")
    databases = setup_databases(verbosity=0, interactive=False, serialized_aliases=())
    try:
        if len(pages) == 1:
            run(pages[0])
        else:
            run_each(pages)
    finally:
        teardown_databases(databases, verbosity=0)


def run_each(pages: list[Path]) -> None:
    """Run each page in a forked process, which takes its definitions with it."""
    from tests.emptying import empty_tables  # with pytest, which one page alone need not import

    gc.freeze()  # otherwise the first collection of each child would copy all that memory
    for page in pages:
        empty_tables("default")
        connections.close_all()
        child = os.fork()
        if child == 0:
            try:
                run(page)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{page} does not run")


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
    main([*map(Path, sys.argv[1:])])
