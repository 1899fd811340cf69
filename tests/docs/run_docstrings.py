"""Run the examples of docstrings, those of each name in a process, with the preamble before them.

Started by `test_docstrings` with the names: ``python -m tests.docs.run_docstrings enode_django.Command …``. The last
line that it prints is a JSON object with the traceback of each name, empty if its examples have passed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import Any

import django
from django.db import connections
from django.test.utils import setup_databases, teardown_databases

from tests.docs.docstrings import Public, public_names
from tests.docs.run_page import execute

PREAMBLE = """\
from decimal import Decimal
from sample_project.bank.domain import *
from enode_django import *
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.testing import inline
"""
"""The names that every example can use, beside the public names of its own module."""


def main(names: list[str]) -> None:
    django.setup()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        connections.close_all()
        print(json.dumps({str(one): in_child(one) for one in public_names() if str(one) in names}))
    finally:
        teardown_databases(databases, verbosity=0)


def in_child(public: Public) -> str:
    """Run the examples in a forked process, so that no class or event of theirs stays. Return the traceback."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open(writing, "w") as file, contextlib.suppress(BaseException):
            file.write(run(public))
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"the process ended with status {status}"


def run(public: Public) -> str:
    namespace: dict[str, Any] = {"__name__": "sample_project.bank.examples"}
    try:
        exec(f"{PREAMBLE}from {public.module} import *\n", namespace)
        for example in public.examples:
            execute(example, namespace)
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
