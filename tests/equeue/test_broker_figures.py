"""The figures that a broker reports for monitoring."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from enode_django.admin.broker_table import LABELS, lines_of
from enode_django.equeue.broker.index import ENTRY_SIZE, Segment
from enode_django.equeue.broker.index_files import IndexFile
from enode_django.equeue.broker.measuring import MOST_CLIENTS, OTHERS, Measuring
from enode_django.equeue.broker.segments import SegmentLoad, UnreadTime
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.monitoring.prometheus import exposition
from enode_django.processors.observing import Observations
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import eventually, texts


def consumed(transport: BrokerTransport) -> None:
    """Send five messages to queue 0 of the topic "orders", and commit two of them for the group "billing"."""
    transport.create_topic("orders", 2)
    transport.send("orders", {0: texts("a", "b")})
    transport.send("orders", {0: texts("c", "d", "e")})
    epoch = transport.acquire("billing", "orders", 0, "one", 30.0).epoch
    transport.commit("billing", "orders", {0: Commit(epoch, 2)})


def test_rates_backlog_age_disk_loop_and_connections_are_told(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport:
        consumed(transport)
        eventually(lambda: transport.figures()["fsync_seconds"]["buckets"]["+Inf"] > 0)
        eventually(lambda: transport.figures()["loop_delay_seconds"]["buckets"]["+Inf"] > 0)
        figures = transport.figures()
        assert figures["topics"]["orders"]["messages"] == 5
        assert figures["topics"]["orders"]["bytes"] > 0
        ((topic, group, committed, ((zero, backlog, age), one)),) = figures["groups"]
        assert (topic, group, committed, zero, backlog, one) == ("orders", "billing", 2, 0, 3, [1, 0, 0.0])
        assert 0 < age < time.time()
        assert figures["connections"] == {"127.0.0.1": 1}
        assert figures["free_bytes"] > 0
        assert not figures["uses_reserve"]


def test_every_figure_for_people_has_a_label_and_a_unit(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport:
        assert set(transport.status()) == set(LABELS)
    shown = lines_of({"free_bytes": 67_885_002_752, "ring_reads": 5_719, "uses_reserve": False, "new_one": "x"})
    assert shown == [
        ("Free space on the disk", "63.2 GB"),
        ("Batches read from the ring", "5,719"),
        ("Sends are refused, since the disk is full", "no"),
        ("new one", "x"),
    ]


def test_the_age_is_known_after_a_start_when_only_the_disk_has_the_index(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport:
        consumed(transport)
        assert own_broker.stop() == 0
        own_broker.start()
        ((_, _, _, ((_, backlog, age), _)),) = transport.figures()["groups"]
        assert backlog == 3
        assert age > 0


def test_the_age_is_unknown_while_the_index_is_damaged(tmp_path: Path) -> None:
    file = IndexFile(tmp_path, "orders", 0, 0)
    assert unread(file).read() is None
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"short")
    assert unread(file).read() is None
    file.path.write_bytes(bytes(ENTRY_SIZE))
    assert unread(file).read() is None


def unread(name: IndexFile) -> UnreadTime:
    """Return the unread time of an index file with one entry, whose CRC must be 1."""
    return UnreadTime(SegmentLoad(name, Segment(0, 1, check=1), 0, lambda *_: ()), 0)


def test_a_retired_group_and_one_without_queues_have_no_backlog(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport:
        consumed(transport)
        transport.join("idle", "orders", "one", 30.0)
        transport.retire_group("billing", "orders")
        assert transport.figures()["groups"] == []


class Client:
    def __init__(self, client: str) -> None:
        self.client = client


def test_of_many_clients_those_with_the_most_connections_are_named(tmp_path: Path) -> None:
    store = MessageStore(tmp_path)
    clients = [Client(f"10.0.0.{number}") for number in range(MOST_CLIENTS + 20)] + [Client("10.0.0.119")]
    connections = Measuring(store, BrokerState(store, patience=0.0), clients, {}, dict)._connections()
    assert connections["10.0.0.119"] == 2
    assert connections[OTHERS] == 20
    assert len(connections) == MOST_CLIENTS + 1
    store.abandon()


def test_processors_that_have_the_broker_show_its_figures_and_others_do_not(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport:
        consumed(transport)
        for has_broker in (True, False):
            observations = Observations(transport, ["orders"], None, dict, has_broker=has_broker)  # type: ignore[arg-type]
            observations.look({"workers": 1})
            observations.start(with_store=False)
            eventually(lambda: "broker_reads" in observations.figures())  # noqa: B023
            if has_broker:
                eventually(lambda: "broker" in observations.shown())  # noqa: B023
            families = text_string_to_metric_families(exposition(observations.shown()).decode())
            names = [family.name for family in families]
            observations.stop()
            assert ("enode_broker_backlog_messages" in names) is has_broker
            assert names.count("enode_broker_reads") == 1
            assert "broker" not in observations.figures(), "a report does not hold them"
