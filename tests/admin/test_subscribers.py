"""The admin shows the lag of subscribers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from enode_django.bus.messages import encode_published
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.models import ParkedEvent, ProjectionGeneration, Subscription
from tests.admin.users import client_of

pytestmark = pytest.mark.django_db

PAGE = "/admin/enode_django/subscriber/"
_memory = MemoryTransport()


def shared_memory(location: str) -> MemoryTransport:
    return _memory


@pytest.fixture
def queue() -> Iterator[MemoryTransport]:
    """Three streams are announced, the oldest 90 seconds old, and the ledger has handled one."""
    global _memory
    _memory = MemoryTransport()
    _memory.create_topic("events", 1)
    made = timezone.now() - timedelta(seconds=90)
    records = [
        StreamRecord("ada", version, f"command-{version}", "bank.BankAccount", "bank.Deposit", made, b"", b"")
        for version in (1, 2, 3)
    ]
    _memory.send("events", {0: [encode_published(record) for record in records]})
    _memory.acquire("bank.Ledger", "events", 0, "one", 60)
    _memory.set_offset("bank.Ledger", "events", 0, 1)
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.shared_memory"}}):
        yield _memory


def park(subscriber: str) -> None:
    now = timezone.now()
    ParkedEvent.objects.create(
        **{"subscriber": subscriber, "aggregate_root_type": "bank.BankAccount", "aggregate_root_id": "ada"},
        **{"version": 2, "command_id": "c", "error_type": "ValueError", "error": "no", "attempts": 5},
        **{"first_failed_at": now, "last_failed_at": now},
    )


def test_lag_generation_and_what_is_parked_are_shown(queue: MemoryTransport) -> None:
    park("bank.Ledger")
    ProjectionGeneration.objects.create(subscriber="bank.Ledger", generation=7)
    started = timezone.now()
    positions = {"start_position": 5, "swept_position": 41}
    Subscription.objects.create(subscriber="bank.Ledger", shard=0, started_at=started, **positions)
    Subscription.objects.create(subscriber="<b>gone</b>", shard=0, started_at=started, **positions)
    response = client_of("view_subscriber", "view_parkedevent").get(PAGE)
    rows = {row.lag.subscriber: row for row in response.context["rows"]}
    ledger = rows["bank.Ledger"]
    assert (ledger.kind, ledger.lag.versions, ledger.lag.parked, ledger.lag.build) == ("projection", 2, 1, 7)
    assert 85 <= (ledger.lag.seconds or 0) < 600
    assert rows["bank.transfers"].kind == "process manager"
    page = response.content.decode()
    assert '<a href="/admin/enode_django/parkedevent/?subscriber=bank.Ledger"' in page
    assert '<td class="enode-number">41</td>' in page
    assert '<a href="#subscriber-bank-ledger">bank.Ledger</a>' in page
    assert '<tr id="subscriber-bank-ledger">' in page
    for heading in ("Event streams behind", "Seconds behind", "Build number", "Compared up to position"):
        assert f">{heading}</th>" in page
    assert "Owned by no code" in page
    assert "&lt;b&gt;gone&lt;/b&gt;" in page
    assert "not kept: runprocessors does not start" in page
    assert "<b>gone" not in page


def test_what_is_parked_is_linked_only_for_who_may_see_it(queue: MemoryTransport, client: Client) -> None:
    park("bank.Ledger")
    viewer = client_of("view_subscriber")
    assert "parkedevent" not in viewer.get(PAGE).content.decode()
    assert f'href="{PAGE}"' in viewer.get("/admin/").content.decode()
    assert client_of("view_parkedevent").get(PAGE).status_code == 403
    assert client.get(PAGE).status_code == 302, "to the login"


@override_settings(ENODE={"QUEUE": {"LOCATION": "tcp://127.0.0.1:1"}})
def test_a_queue_that_cannot_be_reached_hides_nothing_else() -> None:
    response = client_of("view_subscriber").get(PAGE)
    assert response.status_code == 200
    page = response.content.decode()
    assert "what waits in the queue is not known" in page
    assert "unknown" in page
    assert "bank.Ledger" in page
