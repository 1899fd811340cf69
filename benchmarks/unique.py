"""The cost of unique values, and ten thousand races for one value each: exactly one worker must win each of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import django
from django.db import connections

from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.workspace import PROJECT, Services
from enode_django import AggregateRoot, Command, CommandContext, DomainEvent, Unique, applies
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.decisions import Envelope
from enode_django.concurrency.backoff import until_it_works
from enode_django.domain.handlers import HandlerTable
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.repository.loading import AggregateLoader
from enode_django.serialization.registry import types

RACES, BATCH = 10_000, 100
RACING, SOLE, FREE = "races for unique values", "new unique values", "new values that are not unique"


class Name(Command):
    type_name = "benchmarks.Name"
    name: str


class NameFreely(Command):
    type_name = "benchmarks.NameFreely"
    name: str


class Named(DomainEvent):
    type_name = "benchmarks.Named"
    name: str


class Free(AggregateRoot):
    type_name = "benchmarks.Free"
    name: str = ""

    @applies
    def _named(self, event: Named) -> None:
        self.name = event.name


class Sole(AggregateRoot):
    type_name = "benchmarks.Sole"
    name: str = ""
    unique = Unique("name")

    @applies
    def _named(self, event: Named) -> None:
        self.name = event.name


def _naming(cls: type[AggregateRoot]) -> Callable[[Name | NameFreely, CommandContext], None]:
    def handle(command: Name | NameFreely, context: CommandContext) -> None:
        root = cls(context.aggregate_root_id)
        root.apply(Named(name=command.name))
        context.add(root)

    return handle


handlers = HandlerTable()
handlers.add(Name, _naming(Sole))
handlers.add(NameFreely, _naming(Free))


def run(services: Services, quick: bool) -> list[Figure]:
    """Let two workers without queues race for each of the values, in batches. Then let one name aggregates with and
    without a unique field, in turns."""
    races, rounds = (1_000, 3) if quick else (RACES, 7)
    with services.workspace() as workspace:
        command = [sys.executable, "-m", "benchmarks.unique", str(races), str(rounds)]
        done = subprocess.run(
            command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
        )
    found: dict[str, list[float]] = json.loads(done.stdout)
    notes = {RACING: f"{races:,} values, each with one winner"}
    return [median(name, rates, "commands/s", notes.get(name, f"{BATCH} in a batch")) for name, rates in found.items()]


def main(races: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {RACING: [_race(races)], SOLE: [], FREE: []}
    for number in range(rounds):
        for name, cls in ((SOLE, Name), (FREE, NameFreely)):
            rates[name].append(_rate(cls, f"{name} {number}"))
    print(json.dumps(rates))


def _race(races: int) -> float:
    """Return the commands per second of two workers. Raises `BenchmarkError` unless each value has one winner."""
    start = Barrier(2)

    def win(racer: str) -> list[str]:
        worker, won = _Worker(2 * races), []
        for first in range(0, races, BATCH):
            names = [f"raced {number}" for number in range(first, first + BATCH)]
            start.wait()
            # One begins where the other ends, so that they meet.
            won += worker.handle([Name(f"{racer} {name}", name=name) for name in names[:: 1 if racer == "a" else -1]])
        connections.close_all()
        return won

    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(win, "ab")
    seconds = time.perf_counter() - began
    winners = Counter(id[2:] for id in one + other)
    if len(winners) != races or set(winners.values()) != {1}:
        raise BenchmarkError(f"{len(winners)} of {races} values have a winner, and {max(winners.values())} at most")
    return 2 * races / seconds


def _rate(cls: type[Name | NameFreely], name: str) -> float:
    worker, commands = _Worker(), [cls(f"{name} {number}", name=f"{name} {number}") for number in range(20 * BATCH)]
    began = time.perf_counter()
    if len(worker.handle(commands)) < len(commands):
        raise BenchmarkError("a name was refused")
    return len(commands) / (time.perf_counter() - began)


class _Worker:
    """A command mailbox and an event mailbox in one thread, without queues."""

    def __init__(self, max_recent: int = 10_000) -> None:
        store = PostgresEventStore()
        self._processor = CommandProcessor(
            AggregateLoader(store),
            handlers,
            persist=until_it_works,
            max_aggregates=10 * BATCH,
            max_recent=max_recent,
            max_bytes=sys.maxsize,
        )
        self._committer = Committer(store, persist=until_it_works, clock=time.monotonic)

    def handle(self, commands: Sequence[Command]) -> list[str]:
        """Return the ids of the aggregates whose commands were not refused."""
        done = []
        for first in range(0, len(commands), BATCH):
            decisions = self._processor.handle([_envelope(command) for command in commands[first : first + BATCH]])
            committed = self._committer.commit(decisions)
            self._processor.finish(committed.released)
            done += [one.record.aggregate_root_id for one in committed.finished if one.record and one.record.version]
        return done


def _envelope(command: Command) -> Envelope:
    return Envelope(command.id, command.aggregate_root_id, types.name_of(type(command)), command)


if __name__ == "__main__":
    django.setup()
    main(*map(int, sys.argv[1:]))
