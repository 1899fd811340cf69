"""The machine is suspended, and `time.monotonic` stands still: a worker does not store under a lease that ran out
meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any

import pytest

import enode_django
from enode_django import AggregateRoot, CommandContext, applies, command_handler
from enode_django.conf import make_conf
from enode_django.equeue import clocks
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import TransportUnavailable
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command
from tests.acceptance.waiting import wait_until

SOON = 60.0
HOUR = 3_600.0


class Sleep(enode_django.Command):
    type_name = "suspended.Sleep"


class Slept(enode_django.DomainEvent):
    type_name = "suspended.Slept"


class Sleeper(AggregateRoot):
    type_name = "suspended.Sleeper"

    @applies
    def _slept(self, event: Slept) -> None: ...


class Away(MemoryTransport):
    """Gives no lease and renews none once it ``is_away``."""

    is_away = False

    def acquire(self, *args: Any, **options: Any) -> Any:
        self._check()
        return super().acquire(*args, **options)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        self._check()
        return super().renew(group, topic, owner, epochs, lease)

    def _check(self) -> None:
        if self.is_away:
            raise TransportUnavailable("away")


def test_nothing_is_stored_under_a_lease_that_ran_out_while_the_machine_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf, transport, store, suspended = make_conf({"COMMANDS": {"MAILBOXES": 1}}), Away(), MemoryEventStore(), [0.0]
    stand_in = SimpleNamespace(clock_gettime=lambda clock: time.clock_gettime(clock) + suspended[0])
    monkeypatch.setattr(clocks, "time", stand_in)

    @command_handler(Sleep)
    def sleep(command: Sleep, context: CommandContext) -> None:
        transport.is_away, suspended[0] = True, HOUR
        sleeper = Sleeper(command.aggregate_root_id)
        sleeper.apply(Slept())
        context.add(sleeper)

    transport.create_topic(conf.COMMANDS.TOPIC, 1)
    transport.create_topic(conf.SUBSCRIBERS.TOPIC, 1)
    pipeline = make_pipeline(conf, transport, store, owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    try:
        transport.send(conf.COMMANDS.TOPIC, {0: [encode_command(Sleep("x", id="s"), b"")]})
        wait_until(lambda: suspended[0] > 0, "the command is handled")
        wait_until(
            lambda: store.heads(["x"]) or not pipeline.consumer.open_windows, "the decision is stored or dropped"
        )
        assert store.heads(["x"]) == {}
    finally:
        pipeline.drain(1.0)
        pipeline.close(SOON)
