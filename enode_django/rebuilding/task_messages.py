"""Messages between a rebuild and its processes: msgpack, one message per frame."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from enode_django import exceptions
from enode_django.eventstore.position_ranges import PositionRange
from enode_django.eventstore.positions import Position, Stretch
from enode_django.eventstore.scanning import Scan
from enode_django.exceptions import EnodeError, RebuildError
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.replaying import Replayed, Todo
from enode_django.rebuilding.shadow import Shadow
from enode_django.serialization.plain import pack, unpack


class Task(NamedTuple):
    """A task: replay the streams of ``scan``, or do ``catch_up``, or (both None) bring the aggregates in ``todo`` up to
    their versions. Only the alias, range, horizon and types of the scan are sent."""

    shadow: Shadow
    scan: Scan | None
    todo: Sequence[Todo] = ()
    catch_up: CatchUpTask | None = None


class Failed(NamedTuple):
    """The error of a task: the name of its class, its text, and the traceback."""

    error_type: str
    text: str
    trace: str

    def error(self) -> EnodeError:
        """Return an error of the same class if this package has it, otherwise a `RebuildError`."""
        cls = getattr(exceptions, self.error_type, None)
        if isinstance(cls, type) and issubclass(cls, EnodeError):
            try:
                return cls(self.text)
            except TypeError:  # its constructor needs more than a text
                pass
        return RebuildError(f"a process of the rebuild has failed: {self.error_type}: {self.text}")


def packed_task(task: Task) -> bytes:
    scan = task.scan and [task.scan.alias, task.scan.low, task.scan.high, str(task.scan.horizon), list(task.scan.types)]
    caught_up = task.catch_up and [_values(task.catch_up.range), task.catch_up.low, task.catch_up.high]
    return pack([list(task.shadow), scan, [list(one) for one in task.todo], caught_up])


def _values(whole: PositionRange) -> list[Any]:
    stretches = [[*one[:1], list(one.begin), *one[2:]] for one in whole.stretches]
    return [whole.alias, stretches, whole.streams, list(whole.without), whole.by_sequence]


def unpacked_task(data: bytes) -> Task:
    """Return the task that `packed_task` has packed.

    >>> scan = Scan("default", "a", None, Position(0, 5), types=["bank.Account"])
    >>> task = Task(Shadow("bank.Ledger", "default", 3), scan)
    >>> unpacked_task(packed_task(task)) == task
    True
    >>> some = PositionRange("default", (Stretch(0, Position(0, 7), 9, 0, 100),), 5, ("bank.Account",))
    >>> task = Task(Shadow("bank.Ledger", "default", 3), None, (), CatchUpTask(some, "a", "b"))
    >>> unpacked_task(packed_task(task)) == task
    True
    """
    shadow, scan, todo, caught_up = unpack(data)
    some = tuple(Todo(*one) for one in todo)
    return Task(Shadow(*shadow), _scan(*scan) if scan else None, some, _caught_up(*caught_up) if caught_up else None)


def _caught_up(whole: Sequence[Any], low: str, high: str | None) -> CatchUpTask:
    alias, stretches, streams, without, by_sequence = whole
    found = tuple(Stretch(generation, Position(*begin), *rest) for generation, begin, *rest in stretches)
    return CatchUpTask(PositionRange(alias, found, streams, tuple(without), by_sequence), low, high)


def _scan(alias: str, low: str, high: str | None, horizon: str, types: list[str]) -> Scan:
    return Scan(alias, low, high, Position.parse(horizon), types=types)


def send_answer(connection: Connection, answer: Replayed | Failed) -> None:
    connection.send_bytes(pack([type(answer).__name__, list(answer)]))


def receive_answer(connection: Connection) -> Replayed | Failed:
    """Return the next answer. Blocks. Raises `EOFError` or `OSError` when the other side is gone."""
    kind, values = unpack(connection.recv_bytes())
    return Failed(*values) if kind == Failed.__name__ else _replayed(*values)


def _replayed(streams: int, aggregates: int, parked: Sequence[Any]) -> Replayed:
    return Replayed(streams, aggregates, tuple(parked))
