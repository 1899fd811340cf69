"""A broker's answers that wait for the disk, its regular work, and its reports of damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.testing.transport_lease_contract import messages
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.consuming import Handled, consuming, eventually
from tests.equeue.storing import chunks, flip

NEVER = 3_600.0
NO_CHORES = {"flush_interval": NEVER, "checkpoint_interval": NEVER, "retention_interval": NEVER}


def unflushed(transport: BrokerTransport) -> int:
    return int(transport.status()["unflushed_bytes"])


@pytest.mark.parametrize("flush", ["every_write", "interval"])
def test_answer_waits_for_the_disk_when_every_write_has_to(tmp_path: Path, flush: str) -> None:
    with RunningBroker(tmp_path / "data", flush=flush, **NO_CHORES) as broker:
        transport = broker.transport()
        changes: list[Callable[[], object]] = [
            lambda: transport.create_topic("t", 2),
            lambda: transport.send("t", {0: [b"a"], 1: [b"b"]}),
            lambda: transport.add_queues("t", 3, unordered=True),
            lambda: transport.show("t", 2, to_consumers=False),
            lambda: transport.acquire("g", "t", 0, "one", 60),
            lambda: transport.commit("g", "t", {0: Commit(transport.groups("t")["g"].claims[0].epoch, 1)}),
            lambda: transport.set_offset("g", "t", 1, 1),
            lambda: transport.bury("g", "t", "one", [(1, 1)]),
            lambda: transport.retire_group("g", "t"),
            lambda: transport.delete_group("g", "t"),
        ]
        for change in changes:
            before = unflushed(transport)
            change()
            if flush == "every_write":
                assert unflushed(transport) == 0
            else:
                assert unflushed(transport) > before, "it was answered before"
        transport.close()


def sent(transport: Transport, *bodies: bytes, topic: str = "orders") -> None:
    transport.create_topic(topic, 1)
    for body in bodies:
        transport.send(topic, {0: [body]})


def test_what_was_answered_before_goes_to_the_disk_on_a_timer(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", **{**NO_CHORES, "flush_interval": 0.02}) as broker:
        transport = broker.transport()
        sent(transport, b"a")
        eventually(lambda: not unflushed(transport), DEADLINE)
        assert transport.status()["since_checkpoint"] > 0, "it was no checkpoint that did it"
        transport.close()


@pytest.mark.parametrize("when", [{"checkpoint_interval": 0.05}, {"checkpoint_bytes": 100}], ids=["time", "bytes"])
def test_checkpoints_are_written_after_a_time_and_after_many_bytes(tmp_path: Path, when: dict[str, Any]) -> None:
    with RunningBroker(tmp_path / "data", **{**NO_CHORES, **when}) as broker:
        transport = broker.transport()
        sent(transport, b"a" * 200)
        eventually(lambda: not transport.status()["since_checkpoint"], DEADLINE)
        transport.close()


def test_files_that_nobody_reads_are_dropped_from_memory_on_a_timer(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", chunk_size=20_000, low_watermark=0) as broker:
        transport = broker.transport()
        sent(transport, *[b"x" * 5_000] * 8)
        broker.kill()
        broker.start()
        held = transport.status()["held_bytes"]
        assert held > 20_000, "the newest files are held from the start"
        eventually(lambda: transport.status()["held_bytes"] < held, DEADLINE)
        transport.close()


def test_files_are_deleted_on_a_timer_when_no_group_that_is_left_needs_them(tmp_path: Path) -> None:
    retention = {"retention": {"max_age": 0.0}, "retention_interval": 0.05}
    with RunningBroker(tmp_path / "data", chunk_size=20_000, **retention) as broker:
        transport = broker.transport()
        transport.create_topic("orders", 1)
        epochs = {group: transport.acquire(group, "orders", 0, group, 60).epoch for group in ("living", "dead")}
        sent(transport, *[b"x" * 6_000] * 10)
        transport.commit("living", "orders", {0: Commit(epochs["living"], 10)})
        transport.commit("dead", "orders", {0: Commit(epochs["dead"], 4)})

        def first() -> int:
            return transport.queues("orders")[0].first

        eventually(first, DEADLINE)
        assert first() <= 4, "the dead group holds the rest back"
        transport.delete_group("dead", "orders")
        eventually(lambda: first() > 4, DEADLINE)
        assert messages(transport, "orders", 0)[-1] == (9, b"x" * 6_000)
        transport.close()


def test_damaged_batch_is_named_counted_and_passed_over_by_consumers(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        transport = broker.transport()
        sent(transport, *[b"message %d" % number for number in range(5)])
        broker.stop()
        (path,) = chunks(broker.directory)
        place = path.read_bytes().find(b"message 2")
        flip(path, place)
        broker.start()
        handled = Handled()
        with consuming(transport, handled):
            eventually(lambda: transport.committed("billing", "orders") == {0: 5}, DEADLINE)
        assert handled.bodies == ["message 0", "message 1", "message 3", "message 4"]
        assert transport.status()["damaged_batches"] == 1
        assert broker.log.read_text().count(f"damaged batch in {path} at byte ") == 1
        assert transport.send("orders", {0: [b"next"]}) == {0: 5}
        transport.close()
