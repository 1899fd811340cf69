"""Run a page's python blocks, one after the other in one namespace, with commands executed inline and in memory.

Started by `test_code_blocks` in the directory of a project: ``python -m tests.docs.run_page PAGE``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command

from tests.docs.blocks import blocks


def main(page: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    call_command("check")
    from enode_django.eventstore.memory import MemoryEventStore
    from enode_django.testing import inline

    namespace: dict[str, Any] = {"__name__": "__page__"}
    with inline(MemoryEventStore()):
        for block in blocks(page):
            if block.runs and block.option("file") is None and block.option("append") is None:
                exec(compile(block.at_its_lines, str(page), "exec", dont_inherit=True), namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
