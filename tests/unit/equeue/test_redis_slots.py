from __future__ import annotations

import threading
from typing import Any

import pytest

from enode_django.equeue.redis.absence import AbsentNodes
from enode_django.equeue.redis.location import ClusterLocation
from enode_django.equeue.redis.node import Node, Timeouts, make_pool
from enode_django.equeue.redis.servers import ClusterServers
from enode_django.equeue.redis.slots import SlotMap
from tests.equeue.outdated_node import OutdatedNode

A, B, C, D = (("127.0.0.1", port) for port in (1, 2, 3, 4))


def told(*owners: tuple[str, int]) -> list[list[Any]]:
    """An answer to CLUSTER SLOTS in which each has a tenth of the first slots."""
    return [[10 * n, 10 * n + 9, [host.encode(), port, b"id"]] for n, (host, port) in enumerate(owners)]


def test_slots_belong_to_whom_the_map_names_first() -> None:
    slots = SlotMap([A])
    assert (slots.is_known, slots.owner(0)) == (False, None)
    slots.learn(A, [[0, 5, [b"127.0.0.1", 2, b"id"], [b"127.0.0.1", 3, b"id"]], [6, 7, [b"", 1, b"id"]]])
    assert (slots.is_known, slots.owner(5), slots.owner(7), slots.owner(8)) == (True, B, A, None)
    assert slots.to_ask == [A, B, C]


def test_a_refusal_outranks_the_map_until_a_map_agrees() -> None:
    slots = SlotMap([A, B, C])
    slots.learn(A, told(B, C))
    slots.moved(3, C)
    slots.learn(A, told(B, C))
    assert (slots.owner(3), slots.owner(4)) == (C, B)
    slots.learn(C, told(C, C))
    slots.learn(A, told(B, C))
    assert slots.owner(3) == B


def test_a_refusal_is_forgotten_when_the_node_that_it_names_cannot_be_used() -> None:
    slots = SlotMap([A, B, C])
    slots.learn(A, told(B, C))
    slots.moved(3, C)
    slots.cannot_be_used(B)
    assert slots.owner(3) == C
    slots.cannot_be_used(C)
    assert slots.owner(3) == B


def test_another_node_is_asked_each_time_first_of_all_the_one_that_a_refusal_names() -> None:
    slots = SlotMap([A, B])
    slots.was_asked(A)
    slots.learn(A, told(B, C))
    assert slots.to_ask == [B, A, C]
    slots.was_asked(B)
    assert slots.to_ask == [A, C, B]
    slots.moved(3, D)
    assert slots.to_ask == [D, A, C, B]


def test_nodes_that_have_gone_are_not_asked_any_more_but_for_those_of_the_location() -> None:
    slots = SlotMap([A])
    slots.learn(A, told(B, C))
    slots.learn(B, told(D, C))
    assert sorted(slots.to_ask) == [A, C, D]


def test_a_node_is_not_absent_while_no_thread_can_ask_whether_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"host": "127.0.0.1", "port": 1, "socket_timeout": 1.0}
    node = Node("127.0.0.1:1", make_pool("quick", options), make_pool("blocking", options))
    absent = AbsentNodes()

    def too_many(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", too_many)
        absent.add(node, "for 1 s")
    assert node not in absent
    absent.add(node, "for 1 s")
    assert node in absent
    absent.close()


def probes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("equeue-probe-127.0.0.1:")]


def test_a_node_that_has_left_the_cluster_is_forgotten_and_no_thread_asks_it_any_more() -> None:
    before = probes()
    with OutdatedNode(1) as told:
        host, _, port = told.address.rpartition(":")
        servers = ClusterServers(ClusterLocation(((host, int(port)),), {}), Timeouts(5.0, 5.0, 5.0), {})
        for owner in (1, 2, 3):  # nobody listens there
            told.tell(owner)
            servers._is_old = True
            gone = servers.node("key")
            assert gone.name == f"127.0.0.1:{owner}"
            servers.failed(gone, is_replica=False, waited=1.0)
            assert gone in servers._absent
        left = [thread for thread in probes() if thread not in before and not thread.name.endswith(":3")]
        for thread in left:
            thread.join(30.0)
        assert not any(thread.is_alive() for thread in left)
        assert sorted(servers._nodes) == sorted([("127.0.0.1", 3), (host, int(port))])
        servers.close()
