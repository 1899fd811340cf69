"""``python -m chaos.clients NAME SEED``: a process of senders. It sends until its standard input ends, and then waits
until every command has its answer."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import django

from chaos.journal import Journal
from chaos.workload import Sender
from enode_django import Command, CommandResult, WaitFor, send_commands, try_command
from enode_django.exceptions import CommandTimeout, EnodeError
from enode_django.serialization.registry import types

THREADS = 6
ANSWER_SECONDS, HANDLED_SECONDS = 3.0, 8.0
RETRY_SECONDS = 0.1
PATIENCE_SECONDS = 150.0
"""Seconds for which a client requests missing answers after it was told to finish."""


class Client:
    """Sends through the bus of this process, and retries until the command is stored or answered. Thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.stopping = threading.Event()
        """Set when no new command may be sent."""
        self._deadline = float("inf")

    def stop(self) -> None:
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self.stopping.set()

    def execute(self, command: Command, *, handled: bool = False) -> CommandResult | None:
        """Return the answer to a command; None if the client gave up. With ``handled``, wait until all subscribers have
        handled the events, too."""
        wait_for, timeout = (WaitFor.HANDLED, HANDLED_SECONDS) if handled else (WaitFor.EXECUTED, ANSWER_SECONDS)
        for _ in self._tries():
            self._note_send(command)
            try:
                answer = try_command(command, wait_for=wait_for, timeout=timeout)
            except EnodeError as error:
                self._note_error(command, error)
                continue
            self._note_answer(answer)
            return answer
        return None

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands. Return when the queue has stored them, or the client gave up."""
        for _ in self._tries():
            for command in commands:
                self._note_send(command)
            try:
                send_commands(commands)
            except EnodeError as error:
                for command in commands:
                    self._note_error(command, error)
                continue
            self._journal.note(what="sent", ids=[command.id for command in commands])
            return

    def _tries(self) -> Iterator[None]:
        while time.monotonic() < self._deadline:
            yield

    def _note_send(self, command: Command) -> None:
        names = {field.name for field in dataclasses.fields(command)} - {"id", "aggregate_root_id"}
        self._journal.note(
            what="send",
            command={
                "id": command.id,
                "type": types.name_of(type(command)),
                "aggregate_root_id": command.aggregate_root_id,
                "fields": {name: str(getattr(command, name)) for name in sorted(names)},
            },
        )

    def _note_answer(self, answer: CommandResult) -> None:
        self._journal.note(
            what="answer",
            id=answer.command_id,
            aggregate_root_id=answer.aggregate_root_id,
            status=answer.status.name,
            value=None if answer.value is None else str(answer.value),
            version=answer.version,
            error_type=answer.error_type,
            error_message=answer.error_message,
        )

    def _note_error(self, command: Command, error: EnodeError) -> None:
        """Log the error, and raise it again if a retry is useless."""
        self._journal.note(what="no answer", id=command.id, error=f"{type(error).__name__}: {error}")
        if not (error.retriable or isinstance(error, CommandTimeout)):
            raise error
        if not isinstance(error, CommandTimeout):
            time.sleep(RETRY_SECONDS)


def main(name: str, seed: str) -> int:
    django.setup()
    journal = Journal(Path(os.environ["CHAOS_DIRECTORY"]) / "clients" / f"{name}.jsonl")
    client = Client(journal)
    senders = [Sender(client, int(seed), f"{name}-{number}") for number in range(THREADS)]
    for sender in senders:
        sender.start()
    sys.stdin.read()  # until the driver closes it or ends
    client.stop()
    for sender in senders:
        sender.join()
    for sender in senders:
        if sender.error is not None:
            print(f"{sender.name} failed: {sender.error!r}", file=sys.stderr)
    return int(any(sender.error for sender in senders))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
