"""A lagging standby takes over: the work of subscribers for the lost events is taken back, or reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections

from chaos.servers import Standby
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.models import GenerationCheck
from enode_django.outbox.rows import has_table
from sample_project.embedded import Postgres
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, Opened, handler_group
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep
from tests.integration.store_sessions import database_alias, wait_until
from tests.template import OWN, migrate

IDS = [f"c{number}" for number in range(10)]
PROJECTIONS = ("following.rows", "following.entries")


class Failover:
    """The event store ``events`` on its own primary, which has a standby. The subscribers' database stays as it is."""

    def __init__(self, primary: Postgres, standby: Standby, stack: ExitStack) -> None:
        self._primary = primary
        self._standby = standby
        self._stack = stack
        self._alias = ExitStack()
        self._use(primary)

    def _use(self, server: Postgres) -> None:
        self._alias.close()
        self._alias.enter_context(database_alias("events", **self._place(server)))
        self._stack.callback(self._alias.close)
        assert has_table("events")

    @staticmethod
    def _place(server: Postgres) -> dict[str, Any]:
        password = server.password
        return {"HOST": "127.0.0.1", "PORT": server.port, "USER": "postgres", "PASSWORD": password, "NAME": OWN}

    def cut_standby_off(self) -> None:
        """Wait until the standby has all rows, and stop it. Rows that are stored from now on will be lost."""
        self._stack.enter_context(self._standby)
        with psycopg.connect(self._primary.url, autocommit=True) as one:
            (end,) = one.execute("SELECT pg_current_wal_lsn()").fetchall()[0]
        with psycopg.connect(self._standby.url, autocommit=True) as other:
            reached = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: bool(other.execute(reached, [end]).fetchall()[0][0]))
        with database_alias("standby", **self._place(self._standby)):
            assert not has_table("standby"), "its outbox cannot be relayed"
        self._standby.stop()

    def happen(self) -> None:
        connections["events"].close()
        self._primary.kill()
        self._standby.start()
        with psycopg.connect(self._standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
        self._use(self._standby)


@pytest.fixture
def failover(private_postgres: Postgres) -> Iterator[Failover]:
    migrate(private_postgres.url, OWN)
    with ExitStack() as stack:
        yield Failover(private_postgres, Standby(private_postgres), stack)


class Setting:
    """All kinds of subscribers, each with its own sweeping subscription."""

    def __init__(self, harness: Harness) -> None:
        harness.store = PostgresEventStore("events")
        self.harness = harness
        every: list[Subscriber] = [
            subscribers.instance(CounterRows),
            subscribers.instance(Entries),
            subscribers.instance(Kindness),
            handler_group(),
        ]
        self.sweeps = [Sweep(harness, subscriber) for subscriber in every]

    def stored(self, id: str, *amounts: int, after: int = 0) -> list[StreamRecord]:
        first = [Opened(owner="ann")] if not after else []
        return self.harness.stored(id, *first, *(Added(amount=amount) for amount in amounts), after=after)

    def deliver(self, records: Iterable[StreamRecord], generation: int) -> None:
        records = list(records)
        self.harness.clock.now += 2.0
        for sweep in self.sweeps:
            sweep.subscription.handle([self.harness.pulled(records, generation=generation)])

    def sweep(self) -> None:
        self.harness.clock.now += 60.0
        for sweep in self.sweeps:
            sweep.run(120)

    def generation(self) -> int:
        return self.harness.store.generation_of("any")

    def assert_read_models_are_a_replay(self, ids: Iterable[str]) -> None:
        rows = self.harness.rows()
        for id in ids:
            records = list(self.harness.store.load(id))
            amounts = self.harness.amounts(records)
            assert rows.get(id, ("", 0, 0))[1:] == (sum(amount for _, amount in amounts), len(records)), id
            assert self.harness.entries(id) == amounts, id


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[int, str]]]:
    found: list[tuple[int, str]] = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="enode_django.subscribers"):
        yield found
    found += [(record.levelno, record.getMessage()) for record in caplog.records]


def test_a_standby_without_the_last_events_takes_over(
    harness: Harness, behaviour: Behaviour, failover: Failover, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(harness)
    for id in [*IDS, "queued"]:
        setting.deliver(setting.stored(id, 1, 1), setting.generation())
    failover.cut_standby_off()
    lost = [record for id in [*IDS, "gone"] for record in setting.stored(id, 10, 10, 10, after=3 if id in IDS else 0)]
    old = setting.generation()
    setting.deliver(lost, old)
    queued = setting.stored("queued", 10, after=3)
    assert harness.rows()["c0"][1:] == (32, 6)
    assert harness.rows()["gone"][1:] == (30, 4)

    failover.happen()
    # The aggregates get fewer new versions than they lost, as many, or more; the others get none.
    new = {"c0": 1, "c1": 3, "c2": 5}
    written = [record for id, count in new.items() for record in setting.stored(id, *[100] * count, after=3)]
    assert setting.generation() > old
    handled = len(behaviour.calls)
    with logged(caplog) as told:
        setting.deliver(queued, old)
        assert len(behaviour.calls) == handled  # the old message is not handled
        setting.deliver(written, setting.generation())
        setting.assert_read_models_are_a_replay(new)  # aggregates with new events are healed at once
        setting.sweep()
    setting.assert_read_models_are_a_replay([*IDS, "queued", "gone"])
    _assert_reported(told)
    again = len(behaviour.calls)
    setting.sweep()
    assert len(behaviour.calls) == again
    assert set(GenerationCheck.objects.values_list("aggregate_root_id", flat=True)) == {*IDS, "gone"}


def _assert_reported(told: list[tuple[int, str]]) -> None:
    """Assert that each subscriber has reported each aggregate once: projections as a warning, others as an error."""
    for id in [*IDS, "gone"]:
        of = [(level, text) for level, text in told if f" of {id}, which" in text]
        assert len(of) == 4, (id, of)
        for level, text in of:
            assert level == (logging.WARNING if text.startswith(PROJECTIONS) else logging.ERROR), text
            assert ("versions 1 to 4" if id == "gone" else "versions 4 to 6") in text


def test_events_in_the_place_of_lost_ones_are_handled_by_those_that_cannot_go_back(
    harness: Harness, behaviour: Behaviour, failover: Failover
) -> None:
    setting = Setting(harness)
    setting.deliver(setting.stored("c0", 1), setting.generation())
    failover.cut_standby_off()
    setting.deliver(setting.stored("c0", 10, after=2), setting.generation())
    failover.happen()
    setting.stored("c0", 100, 100, after=2)
    behaviour.calls.clear()
    setting.sweep()
    handlers = setting.sweeps[-1].subscription.runner.processor
    assert handlers.positions(["c0"]) == {"c0": 4}
    assert behaviour.calls.count("second") == 2
