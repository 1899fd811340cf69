"""Trace one command from ``execute_command`` to its row: the files of the package that it visits, and their rooms.

    python -m sample_project.embedded postgres broker -- python -m tests.way_of_a_command

Sender and worker run in one process here, with a real broker and PostgreSQL, after earlier commands have warmed them
up. Files are listed in the order of their first call. Files that call another file of the package pass the command on;
the others are leaves: values, codecs, counters, checks that do not apply. A room is a package in ``enode_django``, or
a module beside them.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import django

PACKAGE = "enode_django"
STORED = "PostgresEventStore.append"
"""The function that returns when the row is durable."""
BESIDE = ("enode-keeper", "enode-pruner", "enode-publisher", "enode-replies")
"""The prefixes of the names of threads that a command does not pass on its way to its row."""


class Way(NamedTuple):
    files: Sequence[str]
    passing_on: Sequence[str]
    """The files that call another one, in the same order."""


def changes_of_rooms(files: Sequence[str]) -> int:
    return sum(room_of(one) != room_of(other) for one, other in pairwise(files))


def room_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


class Recorder:
    def __init__(self) -> None:
        self._root = str(Path(sys.modules[PACKAGE].__file__ or "").parent) + "/"
        self._files: dict[str, None] = {}
        self._passing_on: set[str] = set()
        self._is_recording = False
        self.threads: set[str] = set()

    def start(self) -> None:
        self._is_recording = True

    @property
    def way(self) -> Way:
        return Way([*self._files], [file for file in self._files if file in self._passing_on])

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_recording or event not in ("call", "return"):
            return
        name = frame.f_code.co_filename
        if not name.startswith(self._root):
            return
        thread = threading.current_thread().name
        if thread.startswith(BESIDE):
            return
        self.threads.add(thread)
        if event == "call":
            self._files.setdefault(name.removeprefix(self._root))
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else name
            if caller != name and caller.startswith(self._root):
                self._passing_on.add(caller.removeprefix(self._root))
        elif frame.f_code.co_qualname == STORED:
            self._is_recording = False


@contextmanager
def worker() -> Iterator[None]:
    from enode_django.conf import conf
    from enode_django.processors.statistics import Statistics
    from enode_django.processors.wiring import make_pipeline
    from enode_django.runtime import make_store, make_transport

    transport = make_transport()
    for topic in (conf().COMMANDS.TOPIC, conf().SUBSCRIBERS.TOPIC):
        transport.create_topic(topic, 1)
    notes = [array("q", [0, 0]) for _ in range(conf().COMMANDS.MAILBOXES)]
    pipeline = make_pipeline(conf(), transport, make_store(), owner="traced", markers=notes, statistics=Statistics())
    pipeline.start()
    try:
        yield
    finally:
        assert pipeline.drain(10.0)
        pipeline.close(5.0)
        transport.close()


def trace() -> tuple[Way, set[str]]:
    """Return the way of a command in a project that is set up, and the names of the threads that it passed."""
    from enode_django import execute_command
    from enode_django.ids import new_id
    from enode_django.runtime import close_bus
    from sample_project.bank.domain.accounts import Deposit, OpenAccount

    recorder, account = Recorder(), new_id()
    threading.setprofile(recorder)
    try:
        with worker():
            execute_command(OpenAccount(account, owner="Ada"))
            execute_command(Deposit(account, amount=Decimal(1)))
            command = Deposit(account, amount=Decimal(1))
            sys.setprofile(recorder)
            recorder.start()
            execute_command(command)
            sys.setprofile(None)
    finally:
        threading.setprofile(None)
        close_bus()
    return recorder.way, recorder.threads


def main() -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    way, threads = trace()
    for file in way.files:
        print(f"{room_of(file):15} {file}{'' if file in way.passing_on else '  (leaf)'}")
    for what, files in (("all files", way.files), ("files that pass it on", way.passing_on)):
        print(f"{what}: {len(files)}, {changes_of_rooms(files)} changes of rooms")
    print(f"threads: {', '.join(sorted(threads))}")


if __name__ == "__main__":
    main()
