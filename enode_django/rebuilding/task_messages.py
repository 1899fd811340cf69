"""Messages between a rebuild and its processes: msgpack, one message per frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from msgspec import convert

from enode_django import exceptions
from enode_django.eventstore.scanning import Scan
from enode_django.exceptions import EnodeError, RebuildError
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.replaying import Replayed, Todo
from enode_django.rebuilding.shadow import Shadow
from enode_django.serialization.plain import pack, unpack, unpacker


class Task(NamedTuple):
    """A task: replay the streams of ``scan``, or do ``catch_up``, or (both None) bring the aggregates in ``todo`` up to
    their versions.

    >>> from enode_django.eventstore.position_ranges import PositionRange
    >>> from enode_django.eventstore.positions import Position, Stretch
    >>> scan = Scan("default", "a", None, Position(0, 5), types=["bank.Account"], ids=[])
    >>> some = PositionRange("default", (Stretch(0, Position(0, 7), 9, 0, 100),), 5, ("bank.Account",))
    >>> task = Task(Shadow("bank.Ledger", "default", 3), scan, [Todo("a", "bank.Account", 7)], CatchUpTask(some, "b"))
    >>> unpacked_task(pack(task)) == task
    True
    """

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


unpacked_task: Callable[[bytes], Task] = unpacker(Task)


def send_answer(connection: Connection, answer: Replayed | Failed) -> None:
    connection.send_bytes(pack([type(answer).__name__, answer]))


def receive_answer(connection: Connection) -> Replayed | Failed:
    """Return the next answer. Blocks. Raises `EOFError` or `OSError` when the other side is gone."""
    kind, values = unpack(connection.recv_bytes())
    return convert(values, Failed) if kind == Failed.__name__ else convert(values, Replayed)
