"""The database's user may not use a table yet: another role has made it, and nobody has granted the rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.concurrency import backoff
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import SubscriberUnavailable
from enode_django.rebuilding.definitions import quoted
from tests.following.domain import Added, CounterRows, Entries, Opened
from tests.following.harness import Harness
from tests.rebuilding.tables import role, sql


@pytest.fixture
def user(harness: Harness) -> Iterator[str]:
    """Yield the quoted name of a role that may use all tables. The session is its creator's again in the end."""
    with role() as name:
        user = quoted(name)
        for kind in ("TABLES", "SEQUENCES"):
            sql(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {user}")
        try:
            yield user
        finally:
            sql("RESET ROLE")


MISSING = [
    (CounterRows, "INSERT ON following_counterrow"),
    (CounterRows, "UPDATE ON following_counterrow"),
    (CounterRows, "INSERT ON enode_django_checkpoint"),
    (Entries, "SELECT ON enode_django_checkpoint"),
]


@pytest.mark.parametrize(("subscriber", "privilege"), MISSING)
def test_a_subscriber_waits_for_a_privilege_and_parks_nothing(
    harness: Harness, user: str, monkeypatch: pytest.MonkeyPatch, subscriber: type[Subscriber], privilege: str
) -> None:
    def grant(seconds: float) -> None:
        sql("RESET ROLE", f"GRANT {privilege} TO {user}", f"SET ROLE {user}")

    monkeypatch.setattr(backoff, "pause", grant)
    running = subscribers.instance(subscriber)
    streams = harness.stored("c", Opened(owner="ann"), Added(amount=2))
    subscription = harness.subscription(running, attempts=1, persist=backoff.within(60.0))
    sql(f"REVOKE {privilege} FROM {user}", f"SET ROLE {user}")
    harness.deliver(subscription, streams)
    sql("RESET ROLE")
    assert harness.parked(running.name) == []
    assert (harness.rows() if subscriber is CounterRows else harness.entries("c")) != []


def test_the_error_says_what_may_not_be_used(harness: Harness, user: str) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows), attempts=1)
    streams = harness.stored("c", Opened(owner="ann"))
    sql(f"REVOKE INSERT ON following_counterrow FROM {user}", f"SET ROLE {user}")
    with pytest.raises(SubscriberUnavailable, match=r"rows cannot go on: .*following_counterrow.*; GRANT its user"):
        harness.deliver(subscription, streams)


def test_a_row_that_a_security_policy_refuses_parks_its_aggregate_alone(harness: Harness, user: str) -> None:
    """The server gives that the same SQLSTATE."""
    running = subscribers.instance(CounterRows)
    subscription = harness.subscription(running, attempts=1)
    streams = [*harness.stored("c", Opened(owner="ann")), *harness.stored("d", Opened(owner="bob"))]
    sql(
        "ALTER TABLE following_counterrow ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY only_anns ON following_counterrow USING (owner = 'ann')",
        f"SET ROLE {user}",
    )
    try:
        harness.deliver(subscription, streams)
    finally:
        sql(
            "RESET ROLE",
            "DROP POLICY only_anns ON following_counterrow",
            "ALTER TABLE following_counterrow DISABLE ROW LEVEL SECURITY",
        )
    assert [parked.aggregate_root_id for parked in harness.parked(running.name)] == ["d"]
    assert list(harness.rows()) == ["c"]
