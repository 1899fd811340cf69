"""Functions that handlers register with ``on_commit``."""

from __future__ import annotations

from asyncio import CancelledError

import pytest
from django.db import connection, transaction

from enode_django import send_command
from enode_django.eventing.registry import subscribers
from tests.following.domain import Added, Behaviour, Congratulate, CounterRows, Entries
from tests.following.harness import Harness


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, CancelledError])
@pytest.mark.parametrize("projection", [CounterRows, Entries])
def test_a_hook_that_raises_does_not_keep_those_of_others_from_running(
    harness: Harness,
    behaviour: Behaviour,
    projection: type[CounterRows] | type[Entries],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    ran: list[str] = []

    def hook(id: str) -> None:
        ran.append(id)
        if id == "c1/1/0":
            raise error("after the commit")

    monkeypatch.setattr(behaviour, "handle", lambda event: transaction.on_commit(lambda: hook(event.id)))
    records = [record for n in range(4) for record in harness.stored(f"c{n}", Added(amount=n))]
    harness.deliver(harness.subscription(subscribers.instance(projection)), records)
    assert ran == [f"c{n}/1/0" for n in range(4)]
    assert "after the commit" in caplog.text
    assert not harness.window.unfinished


@pytest.mark.parametrize("projection", [CounterRows, Entries])
def test_a_hook_that_leaves_autocommit_off_does_not_keep_later_batches_from_being_committed(
    harness: Harness,
    behaviour: Behaviour,
    projection: type[CounterRows] | type[Entries],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        behaviour, "handle", lambda event: transaction.on_commit(lambda: transaction.set_autocommit(False))
    )
    subscription = harness.subscription(subscribers.instance(projection))
    for id in ("a", "b"):
        harness.deliver(subscription, harness.stored(id, Added(amount=1)))
    connection.close()  # rolls back what is not committed
    ids = list(harness.rows()) if projection is CounterRows else [id for id in ("a", "b") if harness.entries(id)]
    assert ids == ["a", "b"]
    assert "has left autocommit of the database 'default' off" in caplog.text


def test_a_hook_sends_no_command_either(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not run in a rebuild, but after a crash of the worker it does not run either."""
    command = Congratulate("c", text="well done")
    monkeypatch.setattr(behaviour, "handle", lambda event: transaction.on_commit(lambda: send_command(command)))
    harness.deliver(harness.subscription(subscribers.instance(Entries)), harness.stored("c", Added(amount=1)))
    assert "Congratulate cannot be sent by a handler of the projection following.entries" in caplog.text
    assert harness.entries("c") == [(1, 1)]
