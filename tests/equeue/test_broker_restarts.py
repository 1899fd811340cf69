"""Brokers that are stopped or killed, and connections that are cut."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from enode_django.equeue.broker import server
from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.known_sends import SENDS_KEPT
from enode_django.equeue.messages import Commit, Once, Receipt
from enode_django.equeue.stops import AS_ONE, Stops
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import QueueFull, QueueHeld, TransportUnavailable
from enode_django.testing.transport_lease_contract import messages
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.lossy_proxy import LossyProxy

LEASE, SHORT_LEASE = 60.0, 1.0
"""Seconds. After a kill, a broker waits for the lease of a queue's last owner, and so does a test that uses the short
one."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Load:
    """Senders that send until the block ends, and keep the acknowledged messages by offset."""

    def __init__(self, transport: BrokerTransport, senders: int = 3) -> None:
        self._transport = transport
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(senders)]
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(sender,)) for sender in range(senders)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` further messages are acknowledged."""
        wanted = self.count + more
        wait_until(lambda: self.count >= wanted)

    def _send(self, sender: int) -> None:
        number = 0
        while not self._stopped.is_set():
            bodies = [b"%d:%d" % (sender, number + place) for place in range(1 + number % 3)]
            try:
                first = self._transport.send("t", {0: bodies})[0]
            except TransportUnavailable:  # the next message gets another number, since this one may be stored
                time.sleep(0.01)
            else:
                self.acknowledged[sender] |= dict(enumerate(bodies, first))
            number += len(bodies)


@pytest.mark.parametrize("flush", ["every_write", "interval"])
def test_killed_under_load_it_keeps_what_it_acknowledged_in_order(tmp_path: Path, flush: str) -> None:
    with RunningBroker(tmp_path / "data", flush=flush, checkpoint_interval=0.3, chunk_size=20_000) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        with Load(transport) as load:
            for _ in range(3):
                load.wait_for(100)
                broker.kill()
                broker.start()
            load.wait_for(50)
        stored = messages(transport, "t", 0)
        assert [offset for offset, _ in stored] == list(range(len(stored)))
        at = dict(stored)
        for sender, acknowledged in enumerate(load.acknowledged):
            assert {offset: at.get(offset) for offset in acknowledged} == acknowledged
            numbers = [int(body.split(b":")[1]) for _, body in stored if body.startswith(b"%d:" % sender)]
            assert numbers == sorted(set(numbers))
        transport.close()


def test_restart_keeps_topics_groups_offsets_and_receipts_and_ends_leases(own_broker: RunningBroker) -> None:
    own_broker.stop()
    own_broker.start(patience_of_leases=0.5)
    transport = own_broker.transport()
    transport.create_topic("t", 2)
    transport.send("t", {0: [b"a", b"b"]})
    transport.join("g", "t", "one", LEASE)
    lease = transport.acquire("g", "t", 0, "one", LEASE)
    transport.commit("g", "t", {0: Commit(lease.epoch, 1, [Receipt(0, b"r")], 9)})
    for end in (own_broker.kill, own_broker.stop):
        end()
        own_broker.start()
        assert transport.commit("g", "t", {0: Commit(lease.epoch, 2)}) == {0}
        with pytest.raises(QueueHeld, match="'one'"):
            transport.acquire("g", "t", 0, "two", LEASE)
        again = transport.acquire("g", "t", 0, "one", LEASE)
        assert again.epoch > lease.epoch
        assert (again.committed, again.end, again.previous_owner) == (1, 2, None)
        assert transport.receipts("g", "t", 0) == [b"r"]
        assert transport.groups("t")["g"].division == {"one": frozenset({0, 1})}
        lease = again
    transport.acquire("g", "t", 0, "one", SHORT_LEASE)
    own_broker.kill()
    own_broker.start()
    wait_until(lambda: not _is_held(transport, "two"))
    transport.close()


def _is_held(transport: BrokerTransport, owner: str) -> bool:
    try:
        return transport.acquire("g", "t", 0, owner, LEASE).previous_owner != "one"
    except QueueHeld:
        return True


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_those_that_wait_go_on_after_a_restart(own_broker: RunningBroker, how: str) -> None:
    transport = own_broker.transport()
    transport.create_topic("t", 1)
    inbox = transport.open_inbox()

    def pulled() -> list[bytes]:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            try:
                for batch in transport.pull("t", {0: 0}, limit=9, wait=DEADLINE):
                    return list(batch.bodies)
            except TransportUnavailable:
                time.sleep(0.01)
        return []

    def received() -> list[bytes]:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            try:
                if bodies := inbox.receive(DEADLINE):
                    return list(bodies)
            except TransportUnavailable:
                time.sleep(0.01)
        return []

    with ThreadPoolExecutor(2) as pool:
        pulling, receiving = pool.submit(pulled), pool.submit(received)
        other = own_broker.transport()
        wait_until(lambda: other.status()["waiting_pulls"] == other.status()["waiting_inboxes"] == 1)
        getattr(own_broker, how)()
        own_broker.start()
        wait_until(lambda: other.status()["waiting_pulls"] == other.status()["waiting_inboxes"] == 1)
        other.send("t", {0: [b"message"]})
        other.reply([(inbox.address, b"answer")])
        assert pulling.result(DEADLINE) == [b"message"]
        assert receiving.result(DEADLINE) == [b"answer"]
        other.close()
    transport.close()


def test_broker_that_is_away_is_told_with_the_command_that_runs_it(own_broker: RunningBroker) -> None:
    transport = own_broker.transport()
    transport.create_topic("t", 1)
    own_broker.kill()
    before = time.monotonic()
    with pytest.raises(TransportUnavailable, match=r"manage\.py runbroker"):
        transport.send("t", {0: [b"x"]})
    assert time.monotonic() - before < DEADLINE
    own_broker.start()
    assert transport.send("t", {0: [b"x"]}) == {0: 0}
    transport.close()


def test_first_signal_answers_what_waits_for_the_disk(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", flush="every_write") as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        with Load(transport) as load:
            load.wait_for(50)
            assert broker.stop() == 0
            broker.start()
            load.wait_for(1)
        assert len(messages(transport, "t", 0)) >= load.count
        transport.close()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_send_whose_connection_is_cut_anywhere_is_stored_once(own_broker: RunningBroker, direction: str) -> None:
    with LossyProxy(own_broker.location) as proxy:
        transport = BrokerTransport(proxy.location)
        transport.create_topic("t", 2)
        bodies = {0: [b"%d" % number for number in range(700)], 1: [b"x" * 100]}
        expected = 0
        for after in (0, 1, 3, 4, 20, 300, 3_000):
            proxy.cut(direction, after)
            cuts = proxy.cuts
            while proxy.cuts == cuts:
                assert transport.send("t", bodies) == {0: 700 * expected, 1: expected}
                expected += 1
        assert proxy.cuts == 7
        assert transport.end_offsets("t") == {0: 700 * expected, 1: expected}
        transport.close()


def test_send_that_is_made_again_after_a_crash_is_stored_once(own_broker: RunningBroker) -> None:
    transport = own_broker.transport()
    transport.create_topic("t", 2)
    once = [Once(uuid.uuid4().hex, number) for number in (1, 2, 3)]
    bodies = {0: [b"%d" % number for number in range(1_300)], 1: [b"y"]}
    first = transport.send("t", bodies, once=once[0])
    own_broker.stop()  # a checkpoint has the first send; the log will have the second
    own_broker.start()
    second = transport.send("t", bodies, once=once[1])
    own_broker.kill()
    own_broker.start()
    assert transport.send("t", bodies, once=once[1]) == second == {0: 1_300, 1: 1}
    assert transport.send("t", bodies, once=once[0]) == first == {0: 0, 1: 0}
    assert transport.send("t", bodies, once=once[2]) == {0: 2_600, 1: 2}
    transport.close()


def test_send_that_is_made_again_late_is_known_though_others_have_sent_much_since(
    own_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LossyProxy(own_broker.location) as proxy:
        transport = BrokerTransport(proxy.location)
        transport.create_topic("t", 1)

        def pause(seconds: float) -> None:  # called before the send is repeated
            for _ in range(SENDS_KEPT + 1):
                transport.send("t", {0: [b"another thread's"]})

        with monkeypatch.context() as context:
            # Not of the module: other threads of this process may sleep as well.
            clock = SimpleNamespace(sleep=pause, monotonic=time.monotonic)
            context.setattr("enode_django.equeue.transports.broker.time", clock)
            proxy.cut("down", 0)
            assert transport.send("t", {0: [b"once"]}) == {0: 0}
        assert transport.end_offsets("t") == {0: SENDS_KEPT + 2}
        transport.close()


def test_answers_that_were_lost_with_a_connection_come_again(own_broker: RunningBroker) -> None:
    with LossyProxy(own_broker.location) as proxy:
        asking, replying = BrokerTransport(proxy.location), own_broker.transport()
        inbox = asking.open_inbox()
        replying.reply([(inbox.address, b"1"), (inbox.address, b"2")])
        proxy.cut("down", 5)
        with pytest.raises(TransportUnavailable):
            inbox.receive(DEADLINE)
        replying.reply([(inbox.address, b"3")])
        assert list(inbox.receive(DEADLINE)) == [b"1", b"2", b"3"]
        replying.reply([(inbox.address, b"4")])
        assert list(inbox.receive(DEADLINE)) == [b"4"]
        asking.close()
        replying.close()


def test_full_disk_refuses_sends_serves_reads_and_recovers(tmp_path: Path) -> None:
    options = {"chunk_size": 40_000, "checkpoint_interval": 0.1}
    with RunningBroker(tmp_path / "data", **options, file_size=65_536) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        body = b"x" * 30_000
        assert transport.send("t", {0: [body]}) == {0: 0}
        with pytest.raises(QueueFull):
            transport.send("t", {0: [body] * 3})  # this needs another file, which has no room
        assert messages(transport, "t", 0) == [(0, body)]
        assert transport.send("t", {0: [body]}) == {0: 1}
        broker.kill()
        broker.start(file_size=1 << 30)
        assert messages(transport, "t", 0) == [(0, body), (1, body)]
        assert transport.send("t", {0: [body] * 3}) == {0: 2}
        transport.close()


def test_commit_for_which_there_is_no_room_changes_nothing(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", chunk_size=40_000, file_size=65_536) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        transport.send("t", {0: [b"a", b"b"]})
        epoch = transport.acquire("g", "t", 0, "one", 60).epoch
        commit = {0: Commit(epoch, 2, [Receipt(0, b"x" * 70_000)], 1)}
        for _ in range(3):
            with pytest.raises(QueueFull):
                transport.commit("g", "t", commit)
            assert transport.committed("g", "t") == {0: 0}
        assert transport.commit("g", "t", {0: Commit(epoch, 1)}) == set()
        assert transport.send("t", {0: [b"c"]}) == {0: 2}
        broker.kill()
        broker.start(file_size=1 << 30)
        assert transport.committed("g", "t") == {0: 1}
        epoch = transport.acquire("g", "t", 0, "one", 60).epoch
        assert transport.commit("g", "t", {0: commit[0]._replace(epoch=epoch)}) == set()
        transport.close()


def test_two_signals_that_come_together_stop_it_once(own_broker: RunningBroker) -> None:
    """A service manager may signal the process and its group."""
    transport = own_broker.transport()
    transport.create_topic("t", 1)
    transport.send("t", {0: [b"kept"]})
    own_broker.signal(signal.SIGSTOP)
    own_broker.signal(signal.SIGINT)
    own_broker.signal(signal.SIGTERM)
    own_broker.signal(signal.SIGCONT)
    assert own_broker.wait() == 0
    own_broker.start()
    assert messages(transport, "t", 0) == [(0, b"kept")]
    transport.close()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    options = BrokerOptions(directory=tmp_path)
    broker = server.Broker(options, on_turn=lambda: None, on_stop=lambda: None, on_figures=None)
    broker._stops = Stops(iter([0.0, AS_ONE / 2, AS_ONE]).__next__)
    for _ in range(3):
        assert raised == []
        broker._stop()
    assert raised == [signal.SIGKILL]


def test_what_was_pulled_beyond_the_limit_before_messages_were_lost_is_given_to_nobody(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", chunk_size=20_000) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        broker.signal(signal.SIGSTOP)
        shutil.copytree(broker.directory, tmp_path / "before")  # the files as a power cut leaves them
        broker.signal(signal.SIGCONT)
        transport.send("t", {0: [b"old %d" % n for n in range(10)]})
        assert [len(batch.bodies) for batch in transport.pull("t", {0: 0}, limit=7, wait=0)] == [7]
        broker.kill()
        shutil.rmtree(broker.directory)
        (tmp_path / "before").rename(broker.directory)
        broker.start()
        with suppress(TransportUnavailable):  # the connection to the earlier process is lost
            transport.topics()
        transport.send("t", {0: [b"new %d" % n for n in range(10)]})
        transport.acquire("g", "t", 0, "one", 60, start=7)
        (batch,) = transport.pull("t", {0: 7}, limit=10, wait=0)
        assert [bytes(body) for body in batch.bodies] == [b"new 7", b"new 8", b"new 9"]
        transport.close()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_answer_after_a_restart_waits_for_the_process_that_asked(own_broker: RunningBroker, how: str) -> None:
    """Whose answer it is may find the broker again later than the worker that answers."""
    with contextlib.closing(own_broker.transport()) as asking, contextlib.closing(own_broker.transport()) as worker:
        inbox = asking.open_inbox()
        worker.reply([(inbox.address, b"first")])
        assert inbox.receive(DEADLINE) == [b"first"]
        getattr(own_broker, how)()
        own_broker.start()
        worker.reply([(inbox.address, b"second")])
        assert inbox.receive(0.0) == [b"second"]
