from __future__ import annotations

import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime

import pytest

from enode_django.conf import make_conf
from enode_django.equeue.messages import Membership
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors import housekeeping
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline

SOON = 60.0


class Renewed(MemoryTransport):
    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Semaphore(0)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        self.renewed.release()
        return super().renew(group, topic, owner, epochs, lease)


class JoinsForLong(Renewed):
    def __init__(self) -> None:
        super().__init__()
        self.joins = 0
        self.joining, self.let_go = threading.Event(), threading.Event()

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        self.joins += 1
        if self.joins > 1:
            self.joining.set()
            self.let_go.wait(SOON)
        return super().join(group, topic, member, session)


class PrunesForLong(MemoryEventStore):
    def __init__(self) -> None:
        super().__init__()
        self.pruning, self.let_go = threading.Event(), threading.Event()

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        self.pruning.set()
        self.let_go.wait(SOON)
        return 0


def test_leases_are_renewed_while_the_store_takes_long_to_prune(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PRUNE_INTERVAL", 0.01)
    transport, store = Renewed(), PrunesForLong()
    conf = make_conf({"COMMANDS": {"MAILBOXES": 1}, "WORKERS": {"LEASE": 0.4}})
    transport.create_topic(conf.COMMANDS.TOPIC, 1)
    pipeline = make_pipeline(conf, transport, store, owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    assert store.pruning.wait(SOON)
    assert goes_on(transport.renewed)
    assert not store.let_go.is_set()
    store.let_go.set()
    assert pipeline.drain(SOON)


def test_leases_are_renewed_while_the_answer_to_a_heartbeat_is_late() -> None:
    transport = JoinsForLong()
    conf = make_conf({"COMMANDS": {"MAILBOXES": 1}, "WORKERS": {"LEASE": 0.4}})
    transport.create_topic(conf.COMMANDS.TOPIC, 1)
    pipeline = make_pipeline(conf, transport, MemoryEventStore(), owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    assert transport.joining.wait(SOON)
    assert goes_on(transport.renewed)
    assert not transport.let_go.is_set()
    transport.let_go.set()
    assert pipeline.drain(SOON)


def goes_on(happens: threading.Semaphore) -> bool:
    while happens.acquire(blocking=False):
        pass
    # Three times, since the first may have begun before.
    return all(happens.acquire(timeout=SOON / 3) for _ in range(3))
