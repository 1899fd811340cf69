"""Dead letters are written before the consume offset moves, each beside the streams of its aggregate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

import enode_django
from enode_django import CommandContext, command_handler
from enode_django.conf import make_conf
from enode_django.equeue.portions import PORTION_BYTES
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.buckets import select_queue
from enode_django.eventstore.dead_letters import DeadLetter, MemoryDeadLetters
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command
from tests.integration.sharded import id_in
from tests.unit.processors.test_pipeline_memory import SOON, wait_for
from tests.unit.processors.test_shard_away import Halves


class Break(enode_django.Command):
    type_name = "letters.Break"
    text: str = ""


@command_handler(Break)
def break_it(command: Break, context: CommandContext) -> None:
    raise RuntimeError("it breaks")


class Counting(MemoryDeadLetters):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []
        """Bytes of the messages that each call was given."""

    def keep(self, letters: Sequence[DeadLetter], answered: Sequence[str] = ()) -> None:
        self.written.append(sum(len(letter.body) for letter in letters))
        super().keep(letters, answered)


class Away(Counting):
    """Cannot be written to until it ``is_back``."""

    is_back = False
    refused = 0

    def keep(self, letters: Sequence[DeadLetter], answered: Sequence[str] = ()) -> None:
        if not self.is_back:
            self.refused += 1
            raise StoreUnavailable("the database is away")
        super().keep(letters, answered)


class Running:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transport = MemoryTransport()
        self.transport.create_topic("commands", 2)
        self.letters = [Away(), Counting()]
        monkeypatch.setattr("enode_django.processors.wiring.make_dead_letters", lambda store: self.letters)
        self.statistics = Statistics()
        store = ShardedEventStore([MemoryEventStore(), MemoryEventStore()], Halves())
        conf = make_conf({"WORKERS": {"COMMIT_INTERVAL": 0.05}})
        self.pipeline = make_pipeline(
            conf, self.transport, store, owner="w", markers=[[0], [0]], statistics=self.statistics
        )
        self.pipeline.start()

    def send(self, key: str, body: bytes) -> None:
        Producer(self.transport, selector=select_queue).send_all("commands", [(key, body)])

    def kept(self, place: int) -> list[str]:
        return [letter.error_type for letter in self.letters[place].kept.values()]

    @property
    def committed(self) -> int:
        return sum(self.transport.committed("processors", "commands").values())


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    running = Running(monkeypatch)
    yield running
    assert running.pipeline.drain(SOON)
    running.pipeline.close(SOON)


def test_a_letter_that_cannot_be_written_keeps_its_command_in_the_queue_and_nobody_else(running: Running) -> None:
    first, second = id_in(0), id_in(1)
    running.send(first, encode_command(Break(first), b""))
    wait_for(lambda: running.letters[0].refused > 0)  # type: ignore[attr-defined]
    running.send(second, encode_command(Break(second), b""))
    wait_for(lambda: running.kept(1) == ["RuntimeError"])
    wait_for(lambda: running.committed == 1)
    assert running.kept(0) == []
    running.letters[0].is_back = True  # type: ignore[attr-defined]
    wait_for(lambda: running.committed == 2)
    assert running.kept(0) == ["RuntimeError"]
    assert running.statistics.report()["crashed"] == 2


def test_what_is_no_command_is_kept_in_the_first_shard(running: Running) -> None:
    running.letters[0].is_back = True  # type: ignore[attr-defined]
    running.send(id_in(1), b"garbage")
    wait_for(lambda: running.kept(0) == ["MalformedMessage"])
    wait_for(lambda: running.committed == 1)
    (letter,) = running.letters[0].kept.values()
    assert (letter.body, letter.command_id, letter.is_answered) == (b"garbage", "", False)


def test_letters_of_large_commands_are_written_in_portions(running: Running) -> None:
    size, number = PORTION_BYTES // 3, 5
    bodies = [encode_command(Break(id_in(1), text="x" * size), b"") for _ in range(number)]
    Producer(running.transport, selector=select_queue).send_all("commands", [(id_in(1), body) for body in bodies])
    wait_for(lambda: running.committed == number)
    assert len(running.kept(1)) == number
    assert max(running.letters[1].written) <= PORTION_BYTES
    assert sum(running.letters[1].written) >= number * size
