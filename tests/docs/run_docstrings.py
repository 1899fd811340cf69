"""Run the examples of docstrings, those of each name in a process of its own.

Started by `test_docstrings` with the names: ``python -m tests.docs.run_docstrings enode_django.Command …``. The last
line that it prints is a JSON object with the traceback of each name, empty if its examples have passed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from importlib import import_module
from types import ModuleType

import django
from django.core.management import call_command
from django.db import connections
from django.test.utils import setup_databases, teardown_databases

from tests.docs.docstrings import Public, public_names
from tests.docs.run_page import execute

PREAMBLE = """\
import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from django.core.mail import mail_admins
from django.db import migrations, transaction
from django.dispatch import receiver
from django.http import HttpRequest
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from enode_django import *
from enode_django.equeue.messages import Start
from enode_django.equeue.producer import Producer
from enode_django.equeue.subscribing import Consumer, Message, RetryPolicy
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.unique_values import MemoryUniqueValues, UniqueValues
from enode_django.ids import id_of_key, new_id
from enode_django.jobs import RunningJob
from enode_django.repository.states import MemoryStates, SharedStates
from enode_django.repository.store import MemorySnapshotStore, Snapshot, SnapshotStore
from enode_django.runtime import make_store
from enode_django.testing import InlineCommandBus, StoredEvent, given, inline
from sample_project.bank.domain import *
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee
from sample_project.bank.process_managers import TransferProcess
from sample_project.bank.projections import AccountSummaries, Payees

transport = MemoryTransport()

@dataclass
class Greeting:
    owner: str = ""
    deposits: int = 0
"""
"""The names that every example can use, beside the public names of its own module."""

SITUATIONS = {
    "enode_django.runtime.make_transport": """\
from django.test import override_settings

override_settings(ENODE={"QUEUE": {"BACKEND": "enode_django.equeue.transports.memory.MemoryTransport"}}).enable()
""",
    "enode_django.equeue.administration": """\
transport.create_topic("orders", 4)
transport.show("orders", 3, to_producers=False, to_consumers=False)
Producer(transport, selector=lambda key, count: 0).send("orders", key="ada", body=b"3 apples")
set_offsets(transport, "billing", "orders", Start.FIRST, queues=[0], new_group=True)
""",
    "enode_django.equeue.dead_letters": """\
def fail(message: Message) -> None:
    raise ValueError("no apples are left")

Producer(transport, queues=1).send("orders", key="ada", body=b"3 apples")
consumer = Consumer(transport, group="billing", topics=["orders"], handle=fail, retry=RetryPolicy(delays=()))
consumer.start()
while not groups_with_dead_letters(transport) or not list(dead_letters(transport, "billing")):
    time.sleep(0.01)
consumer.stop()
""",
}
"""Code that runs before the examples of a module or of a name."""


def main(names: list[str]) -> None:
    django.setup()
    chosen = [one for one in public_names() if str(one) in names]
    exec(PREAMBLE, {})  # imported once, and not by each process
    for one in chosen:
        import_module(one.module)
    databases = setup_databases(verbosity=0, interactive=False, serialized_aliases=())
    try:
        connections.close_all()
        gc.freeze()  # otherwise the first collection of each child would copy all that memory
        print(json.dumps({str(one): in_child(one) for one in chosen}))
    finally:
        teardown_databases(databases, verbosity=0)


def in_child(public: Public) -> str:
    """Run the examples in a forked process, which takes their definitions and stored data with it. Return the
    traceback."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open(writing, "w") as file:
            file.write(run(public))
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"its process has ended with the status {status}"


def run(public: Public) -> str:
    module = ModuleType("sample_project.bank.examples")  # of an app, so that its classes have names
    sys.modules[module.__name__] = module
    try:
        if connections["default"].vendor == "postgresql":
            call_command("flush", verbosity=0, interactive=False)
        situation = SITUATIONS.get(public.module, "") + SITUATIONS.get(str(public), "")
        before = f"{PREAMBLE}from {public.module} import *\n{situation}"
        exec(compile(before, "<preamble>", "exec", dont_inherit=True), module.__dict__)
        sys.stdout = sys.stderr
        for example in public.examples:
            execute(example, module.__dict__)
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
