"""Broadcasting: each consumer gets all messages."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from enode_django.equeue.consumer.broadcasting import BroadcastQueues
from enode_django.equeue.consumer.queue_consumer import NOTHING_TO_PULL
from enode_django.equeue.consumer.reached import SETTLED_AFTER
from enode_django.equeue.dead_letters import dead_letters, requeue
from enode_django.equeue.offsets_file import KeptOffsets, OffsetsFile
from enode_django.equeue.subscribing import Consumer, Mode, Start
from enode_django.equeue.transport import DeletesTopics, Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import QueueError
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import Handled, RefusesPulls, WidensBeforeItIsAsked, consuming, eventually, texts

ROOT = Path(__file__).parents[2]
ALL = {"mode": Mode.BROADCASTING}


def offsets(directory: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((directory / "billing@orders.json").read_text())["offsets"]
    return found


def test_each_consumer_gets_every_message(orders: Transport, tmp_path: Path) -> None:
    first, second = Handled(), Handled()
    orders.send("orders", {0: texts("a"), 1: texts("b")})
    with (
        consuming(orders, first, directory=tmp_path / "1", **ALL),
        consuming(orders, second, directory=tmp_path / "2", **ALL),
    ):
        for handled in (first, second):
            eventually(lambda handled=handled: sorted(handled.bodies) == ["a", "b"])  # type: ignore[misc]
        eventually(lambda: offsets(tmp_path / "1") == offsets(tmp_path / "2") == {"0": 1, "1": 1})
    assert orders.groups("orders") == {}


def test_consumer_goes_on_from_its_file(orders: Transport, tmp_path: Path) -> None:
    orders.send("orders", {0: texts("a", "b")})
    with consuming(orders, Handled(), directory=tmp_path, **ALL) as consumer:
        eventually(lambda: (tmp_path / "billing@orders.json").exists() and offsets(tmp_path)["0"] == 2)
        assert consumer.stop(60)
    orders.send("orders", {0: texts("c")})
    orders.add_queues("orders", 3, unordered=True)
    orders.send("orders", {2: texts("in a new queue")})
    handled = Handled()
    with consuming(orders, handled, directory=tmp_path, start=Start.LAST, **ALL):
        eventually(lambda: sorted(handled.bodies) == ["c", "in a new queue"])
    assert offsets(tmp_path) == {"0": 3, "1": 0, "2": 1}


def test_what_was_pulled_and_not_finished_comes_again(orders: Transport, tmp_path: Path) -> None:
    orders.send("orders", {0: texts("a", "fatal", "c")})

    def handle(message: object) -> None:
        if b"fatal" in message:  # type: ignore[operator]
            raise SystemExit

    consumer = Consumer(orders, group="billing", topics=["orders"], handle=handle, directory=tmp_path, **ALL)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        consumer.run()
    handled = Handled()
    with consuming(orders, handled, directory=tmp_path, **ALL):
        eventually(lambda: handled.bodies == ["fatal", "c"])


def test_offset_after_the_end_is_brought_back(orders: Transport, tmp_path: Path) -> None:
    OffsetsFile(tmp_path, "billing", "orders").write(KeptOffsets(offsets={0: 17}))
    handled = Handled()
    with consuming(orders, handled, directory=tmp_path, **ALL):
        eventually(lambda: offsets(tmp_path) == {"0": 0, "1": 0})
        orders.send("orders", {0: texts("a")})
        eventually(lambda: handled.bodies == ["a"])


def test_queue_that_has_lost_its_newest_messages_is_consumed_from_its_end(
    memory: MemoryTransport, tmp_path: Path
) -> None:
    handled = Handled()
    memory.send("orders", {0: texts("a", "lost", "lost")})
    with consuming(memory, handled, directory=tmp_path, **ALL):
        eventually(lambda: handled.bodies == ["a", "lost", "lost"])
        with memory._changed:
            del memory._queues["orders"][0].bodies[1:]
        eventually(lambda: offsets(tmp_path)["0"] == 1)
        memory.send("orders", {0: texts("b")})
        eventually(lambda: handled.bodies == ["a", "lost", "lost", "b"])


def test_files_and_directories_that_are_made_for_offsets_are_their_owners_alone(
    memory: MemoryTransport, tmp_path: Path
) -> None:
    directory = tmp_path / "made" / "here"
    memory.send("orders", {0: texts("a")})
    with consuming(memory, Handled(), directory=directory, **ALL):
        eventually(lambda: (directory / "billing@orders.json").exists())
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").rglob("*")} == {
        "here": 0o700,
        "billing@orders.json": 0o600,
        "billing@orders.lock": 0o600,
    }


class Broadcast:
    """The queues of one broadcasting consumer, driven step by step. `restart` stands for its next process."""

    def __init__(self, transport: Transport, directory: Path) -> None:
        self.transport = transport
        self.directory = directory
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        file = OffsetsFile(self.directory, "billing", "orders")
        self.queues = BroadcastQueues(
            self.transport, topic="orders", file=file, start=lambda queue: 0, clock=lambda: self.now
        )
        self.beat()

    def stop(self) -> None:
        self.queues.leave()
        self.queues.release_drained()

    def beat(self) -> None:
        self.queues.join()
        self.queues.acquire_missing()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.queues.join()

    def handle(self) -> list[str]:
        handled = []
        for pulled in self.queues.pull(100, 0):
            handled += [body.decode() for body in pulled.bodies]
            pulled.window.finish_many(pulled.offsets)
        self.queues.commit()
        return handled


def lose(memory: MemoryTransport, first: int) -> None:
    """Lose the messages of queue 0 from an offset on, and begin a new timeline, as a crash of the broker's machine
    does."""
    with memory._changed:
        del memory._queues["orders"][0].bodies[first:]
        memory._timeline += "'"


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped meanwhile"])
def test_messages_that_get_the_offsets_of_lost_ones_are_handled(
    memory: MemoryTransport, tmp_path: Path, is_running: bool
) -> None:
    broadcast = Broadcast(memory, tmp_path)
    memory.send("orders", {0: texts(*range(6))})
    assert broadcast.handle() == list("012345")
    for _ in range(2):
        broadcast.wait(SETTLED_AFTER)
    memory.send("orders", {0: texts(6, 7, 8)})
    assert broadcast.handle() == list("678")
    if not is_running:
        broadcast.stop()
    lose(memory, 7)
    memory.send("orders", {0: texts("new 7", "new 8", "new 9")})
    if is_running:
        assert broadcast.handle() == ["new 9"]  # it cannot know of the new timeline yet
        broadcast.beat()
    else:
        broadcast.restart()
    assert broadcast.handle() == ["6", "new 7", "new 8", "new 9"]
    broadcast.beat()
    assert broadcast.handle() == []
    broadcast.stop()


def test_what_was_reached_just_before_a_crash_is_not_settled_by_the_time_that_it_takes(
    memory: MemoryTransport, tmp_path: Path
) -> None:
    broadcast = Broadcast(memory, tmp_path)
    broadcast.wait(SETTLED_AFTER)
    memory.send("orders", {0: texts("a", "b")})
    assert broadcast.handle() == ["a", "b"]
    broadcast.wait(SETTLED_AFTER)
    lose(memory, 1)
    memory.send("orders", {0: texts("new b")})
    for _ in range(2):  # twice before any queue is acquired anew
        broadcast.wait(2 * SETTLED_AFTER)
    broadcast.beat()
    assert broadcast.handle() == ["a", "new b"]
    broadcast.stop()


def test_a_file_of_the_version_before_is_read(memory: MemoryTransport, tmp_path: Path) -> None:
    memory.send("orders", {0: texts("a", "b")})
    (tmp_path / "billing@orders.json").write_text('{"offsets": {"0": 1, "1": 0}}')
    broadcast = Broadcast(memory, tmp_path)
    assert broadcast.handle() == ["b"]
    broadcast.stop()
    kept = json.loads((tmp_path / "billing@orders.json").read_text())
    assert kept["offsets"] == {"0": 2, "1": 0}
    assert kept["settled"] == {"0": 1, "1": 0}
    assert set(kept["timelines"].values()) == {memory._timeline}


def test_what_was_handled_but_not_written_before_a_queue_was_lost_does_not_come_again(
    memory: MemoryTransport, tmp_path: Path
) -> None:
    broadcast = Broadcast(memory, tmp_path)
    memory.send("orders", {0: texts("a")})
    (pulled,) = broadcast.queues.pull(100, 0)
    pulled.window.finish_many(pulled.offsets)
    broadcast.queues.lose_all()
    broadcast.beat()
    assert broadcast.handle() + broadcast.handle() == []
    broadcast.stop()


def test_what_is_settled_is_written_though_nothing_is_consumed(memory: MemoryTransport, tmp_path: Path) -> None:
    broadcast = Broadcast(memory, tmp_path)
    memory.send("orders", {0: texts("a")})
    assert broadcast.handle() == ["a"]
    for _ in range(2):
        broadcast.wait(SETTLED_AFTER)
    broadcast.queues.commit()
    assert json.loads((tmp_path / "billing@orders.json").read_text())["settled"] == {"0": 1, "1": 0}
    broadcast.stop()


def test_offsets_that_could_not_be_written_are_written_later_though_nothing_is_consumed(
    memory: MemoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: OffsetsFile, kept: KeptOffsets) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    memory.send("orders", {0: texts("old")})
    file = OffsetsFile(tmp_path, "billing", "orders")
    queues = BroadcastQueues(memory, topic="orders", file=file, start=lambda queue: 1 - queue)
    queues.join()
    with monkeypatch.context() as full:
        full.setattr(OffsetsFile, "write", fail)
        queues.acquire_missing()
        queues.commit()
    assert not file.path.exists()
    queues.commit()
    file.close()
    kept = OffsetsFile(tmp_path, "billing", "orders").open()
    assert kept is not None
    assert kept.offsets == {0: 1, 1: 0}


def test_offsets_that_two_threads_commit_are_written_once(
    memory: MemoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broadcast = Broadcast(memory, tmp_path)
    memory.send("orders", {0: texts("a")})
    (pulled,) = broadcast.queues.pull(100, 0)
    pulled.window.finish_many(pulled.offsets)
    writing, may_write, written = threading.Event(), threading.Event(), []
    write = OffsetsFile.write

    def slowly(self: OffsetsFile, kept: KeptOffsets) -> None:
        writing.set()
        may_write.wait()
        write(self, kept)
        written.append(kept.offsets[0])

    monkeypatch.setattr(OffsetsFile, "write", slowly)
    threads = [threading.Thread(target=broadcast.queues.commit) for _ in range(2)]
    threads[0].start()
    writing.wait()
    threads[1].start()
    threads[1].join(0.1)  # it waits for the first one
    may_write.set()
    for thread in threads:
        thread.join()
    assert written == [1]
    broadcast.stop()


def test_a_full_disk_of_the_consumer_does_not_end_it(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=128k,nr_inodes=64 none {tmp_path} && "
    probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("no file system of our own can be mounted here")
    program = [sys.executable, "-m", "tests.equeue.broadcasting_on_full_disk", str(tmp_path)]
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount + '"$@"', "sh", *program], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    assert "cannot be written" in ran.stderr
    assert "no room for the offsets" in ran.stderr


def test_consumers_go_on_after_a_broker_has_lost_what_they_had_handled(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    transport = own_broker.transport()
    transport.create_topic("orders", 2)
    transport.send("orders", {0: texts("kept")})
    own_broker.kill()
    shutil.copytree(own_broker.directory, tmp_path / "copy")
    own_broker.start()
    handled = Handled()
    with consuming(transport, handled, directory=tmp_path / "offsets", **ALL):
        transport.send("orders", {0: texts("lost", "lost")})
        eventually(lambda: handled.bodies == ["kept", "lost", "lost"])
        own_broker.kill()
        shutil.rmtree(own_broker.directory)
        shutil.copytree(tmp_path / "copy", own_broker.directory)
        own_broker.start()
        transport.send("orders", {0: texts(*range(5))})
        eventually(lambda: handled.bodies[-5:] == ["0", "1", "2", "3", "4"])
    transport.close()


def test_a_broker_that_tells_no_timelines_is_consumed_from_all_the_same(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", without=["timelines"]) as broker:
        transport = broker.transport()
        transport.create_topic("orders", 2)
        handled = Handled()
        with consuming(transport, handled, directory=tmp_path / "offsets", **ALL) as consumer:
            transport.send("orders", {0: texts("a")})
            eventually(lambda: handled.bodies == ["a"])
            consumer._consumers["orders"].join()
            transport.send("orders", {0: texts("b")})
            eventually(lambda: handled.bodies == ["a", "b"])
        transport.close()


def test_a_broker_that_was_stopped_lets_nothing_be_handled_again(own_broker: RunningBroker, tmp_path: Path) -> None:
    transport = own_broker.transport()
    transport.create_topic("orders", 2)
    transport.send("orders", {0: texts("a")})
    handled = Handled()
    with consuming(transport, handled, directory=tmp_path / "offsets", **ALL) as consumer:
        eventually(lambda: handled.bodies == ["a"])
        assert own_broker.stop() == 0
        own_broker.start()
        transport.send("orders", {0: texts("b")})
        eventually(lambda: handled.bodies == ["a", "b"])
        consumer._consumers["orders"].join()
        transport.send("orders", {0: texts("c")})
        eventually(lambda: handled.bodies == ["a", "b", "c"])
    transport.close()


@pytest.mark.parametrize("noticed", ["while joining", "while pulling", "while taking queues"])
def test_consumer_goes_on_with_the_queues_that_are_left_of_a_topic_made_again(
    orders: Transport, tmp_path: Path, noticed: str
) -> None:
    assert isinstance(orders, DeletesTopics)
    broadcast = Broadcast(orders, tmp_path)
    orders.send("orders", {0: texts("a"), 1: texts("b")})
    assert sorted(broadcast.handle()) == ["a", "b"]
    orders.delete_topic("orders", force=True)
    orders.create_topic("orders", 1)
    orders.send("orders", {0: texts("c")})
    if noticed == "while joining":
        broadcast.queues.join()
    elif noticed == "while taking queues":
        broadcast.queues.lose_all()
    else:
        assert broadcast.handle() == []
    broadcast.queues.acquire_missing()
    assert broadcast.handle() + broadcast.handle() == ["c"]  # a pull that was woken may return nothing
    broadcast.beat()
    assert broadcast.queues.owned == {0}
    orders.add_queues("orders", 2, unordered=True)
    orders.send("orders", {1: texts("d")})
    broadcast.beat()
    assert broadcast.handle() + broadcast.handle() == ["d"]
    broadcast.stop()


def test_consumer_goes_on_with_the_queues_that_come_back_before_it_looks(orders: Transport, tmp_path: Path) -> None:
    assert isinstance(orders, DeletesTopics)
    broadcast = Broadcast(cast(Transport, WidensBeforeItIsAsked(orders)), tmp_path)
    orders.delete_topic("orders", force=True)
    orders.create_topic("orders", 1)
    broadcast.handle()
    orders.send("orders", {0: texts("a"), 1: texts("b")})
    handled: list[str] = []
    eventually(lambda: handled.extend(broadcast.handle()) or sorted(handled) == ["a", "b"])
    broadcast.stop()


def test_pulls_that_are_refused_though_the_queue_is_there_follow_each_other_with_pauses(
    orders: Transport, tmp_path: Path
) -> None:
    broadcast = Broadcast(cast(Transport, RefusesPulls(orders)), tmp_path)
    assert broadcast.queues.pull(10, 1.0) == []  # the first look at the queues has woken it
    began = time.monotonic()
    assert broadcast.queues.pull(10, 1.0) == []
    assert time.monotonic() - began >= NOTHING_TO_PULL
    broadcast.stop()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"offsets": {"x": 1}}',
        '{"offsets": {"0": -1}}',
        '{"offsets": 7}',
        '{"offsets": {}, "settled": 7}',
    ],
)
def test_damaged_file_ends_the_consumer_and_is_named(orders: Transport, tmp_path: Path, text: str) -> None:
    file = tmp_path / "billing@orders.json"
    file.write_text(text)
    handled = Handled()
    with (
        consuming(orders, handled, directory=tmp_path, **ALL) as consumer,
        pytest.raises(QueueError, match=r"billing@orders\.json.*delete it"),
    ):
        consumer.join(60)
    assert file.read_text() == text
    assert handled.messages == []


def test_two_consumers_do_not_share_a_file(orders: Transport, tmp_path: Path) -> None:
    with consuming(orders, Handled(), directory=tmp_path, **ALL):
        eventually(lambda: (tmp_path / "billing@orders.json").exists())
        with (
            consuming(orders, Handled(), directory=tmp_path, **ALL) as second,
            pytest.raises(QueueError, match="a directory of its own"),
        ):
            second.join(60)


def test_failed_message_is_tried_again_here_and_then_is_a_dead_letter(orders: Transport, tmp_path: Path) -> None:
    handled = Handled(once=1, bad=-1)
    orders.send("orders", {0: texts("once", "bad", "good")})
    with consuming(orders, handled, directory=tmp_path, **ALL):
        eventually(lambda: offsets(tmp_path) == {"0": 3, "1": 0} if (tmp_path / "billing@orders.json").exists() else 0)
    assert sorted(handled.bodies) == ["bad", "bad", "bad", "good", "once", "once"]
    assert orders.topics() == ["dead.billing", "orders"]
    (letter,) = dead_letters(orders, "billing")
    assert letter.failed is not None
    assert letter.failed.for_all
    assert requeue(orders, "billing") == []  # the group has no retries of its own
    with pytest.raises(QueueError, match="broadcasting"):
        requeue(orders, "billing", [letter.offset])
    assert requeue(orders, "billing", to_topic=True) == [letter.offset]
