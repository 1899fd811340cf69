"""``Idempotency-Key``: the same request takes effect once, and a key is nobody else's."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import psycopg
import pytest
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from enode_django import execute_command, metadata
from enode_django.api.received import prune, prunes
from enode_django.ids import id_of_key
from enode_django.models import EventStream, ReceivedCommand
from enode_django.testing.inline import InlineCommandBus
from sample_project.bank.domain import Deposit, OpenAccount
from tests.api import commands
from tests.api.calls import Caller, problem, wrong_parts
from tests.api.conftest import MakeCaller
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db

DEPOSIT = ("bank.Deposit", "a", {"amount": "5"})
WAIT = "?wait=executed"


@pytest.fixture(autouse=True)
def account(bus: InlineCommandBus) -> None:
    execute_command(OpenAccount("a", owner="Ada"))


def test_the_same_request_takes_effect_once(sender: Caller) -> None:
    first, second = (sender.send(*DEPOSIT, key="k", query=WAIT) for _ in range(2))
    assert first.json() == second.json()
    assert first.json()["value"] == "5"
    assert sender.send(*DEPOSIT, key='"k"').status_code == 202  # as a structured field
    assert EventStream.objects.filter(aggregate_root_id="a").count() == 2


def test_the_order_of_members_makes_no_other_content(sender: Caller) -> None:
    one = '{"type": "bank.Deposit", "aggregate_root_id": "a", "fields": {"amount": "5"}}'
    other = '{"fields": {"amount": "5"}, "aggregate_root_id": "a", "type": "bank.Deposit"}'
    assert [sender.post(body, Idempotency_Key="k").status_code for body in (one, other)] == [202, 202]


@pytest.mark.parametrize(
    ("type_name", "id", "fields"),
    [
        ("bank.Deposit", "a", {"amount": "5.0"}),
        ("bank.Withdraw", "a", {"amount": "5"}),
        ("bank.Deposit", "b", {"amount": "5"}),
    ],
)
def test_the_same_key_with_other_content_is_refused(sender: Caller, type_name: str, id: str, fields: object) -> None:
    sender.send(*DEPOSIT, key="k")
    found = problem(sender.send(type_name, id, fields, key="k", query=WAIT), 422)
    assert found["type"] == "urn:problem-type:enode:key-reused"
    assert EventStream.objects.filter(command_id=id_of_key(sender.key, "k")).count() == 1


def test_another_version_to_expect_is_other_content(sender: Caller) -> None:
    assert sender.send(*DEPOSIT, key="k", If_Match='"1"').status_code == 202
    assert problem(sender.send(*DEPOSIT, key="k", If_Match='"2"'), 422)


def test_a_key_is_nobody_elses_and_keeps_nobody_from_using_the_same(sender: Caller, caller: MakeCaller) -> None:
    other = caller("send_command", name="other")
    first = sender.send(*DEPOSIT, key="order-5", query=WAIT).json()
    assert problem(other.get("commands/order-5/"), 404)
    second = other.send("bank.Withdraw", "a", {"amount": "1"}, key="order-5", query=WAIT).json()
    assert (second["value"], second["id"] != first["id"]) == ("4", True)
    for one, id in ((sender, first["id"]), (other, second["id"])):
        assert one.get("commands/order-5/").json()["id"] == one.get(f"commands/{id}/").json()["id"] == id
    assert problem(other.get(f"commands/{first['id']}/"), 404)


@pytest.mark.parametrize("user", ["somebody", None])
def test_the_id_of_a_command_that_came_another_way_is_taken(sender: Caller, user: str | None) -> None:
    """Nobody can produce such an id. If one is taken anyway, the answer does not reveal whose command that is."""
    taken = id_of_key(sender.key, "k")
    with metadata(user_id=user):
        execute_command(Deposit("a", amount=Decimal(5), id=taken))
    assert problem(sender.send(*DEPOSIT, key="k", query=WAIT), 422)
    assert not ReceivedCommand.objects.exists()
    assert problem(sender.get("commands/k/"), 404)


@contextlib.contextmanager
def store_away() -> Iterator[None]:
    """Lock the event store's table: every reader fails at once with a timeout."""
    connection.ensure_connection()
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute(f"LOCK TABLE {EventStream._meta.db_table}")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 1")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")


@pytest.mark.django_db(transaction=True)
def test_who_asks_again_when_the_store_was_away_still_learns_nothing(sender: Caller) -> None:
    with metadata(user_id="somebody"):
        execute_command(Deposit("a", amount=Decimal(5), id=id_of_key(sender.key, "theirs")))
    with store_away():
        assert problem(sender.send(*DEPOSIT, key="theirs", query=WAIT), 503)
    assert problem(sender.send(*DEPOSIT, key="theirs", query=WAIT), 422)


def test_keys_are_forgotten_by_age_and_their_commands_still_take_effect_once(sender: Caller) -> None:
    first = sender.send(*DEPOSIT, key="k", query=WAIT).json()
    sender.send(*DEPOSIT, key="young")
    ReceivedCommand.objects.filter(command_id=first["id"]).update(received_at=F("received_at") - timedelta(days=8))
    assert prune() == 1
    assert list(ReceivedCommand.objects.values_list("command_id", flat=True)) == [id_of_key(sender.key, "young")]
    assert sender.send(*DEPOSIT, key="k", query=WAIT).json() == first
    assert problem(sender.send("bank.Withdraw", "a", {"amount": "5"}, key="k"), 422)


def test_a_key_of_a_command_that_was_renamed_after_the_key_was_forgotten_gets_the_stored_answer(sender: Caller) -> None:
    ship = (commands.Ship.type_name, "p", {"weight": "1.5", "to": {"x": "1"}})
    first = sender.send(*ship, key="k", query=WAIT)
    assert first.status_code == 200
    EventStream.unprotected.filter(aggregate_root_id="p").update(command_type=commands.Ship.aliases[0])
    ReceivedCommand.objects.all().delete()
    assert sender.send(*ship, key="k", query=WAIT).json() == first.json()


def test_keys_are_kept_by_the_time_of_the_database_if_the_clock_here_is_ahead(
    sender: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.send(*DEPOSIT, key="k")
    ahead = timezone.now() + timedelta(days=8)
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    assert prune() == 0


def test_keys_are_pruned_as_others_come(sender: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enode_django.api.received._EVERY", 1)
    sender.send(*DEPOSIT, key="old")
    ReceivedCommand.objects.update(received_at=F("received_at") - timedelta(days=8))
    sender.send(*DEPOSIT, key="new")
    assert list(ReceivedCommand.objects.values_list("command_id", flat=True)) == [id_of_key(sender.key, "new")]


def test_keys_are_pruned_however_few_each_process_gets(sender: Caller) -> None:
    sender.send(*DEPOSIT, key="old")
    ReceivedCommand.objects.update(received_at=F("received_at") - timedelta(days=8))
    pruning = next(key for key in map(str, itertools.count()) if prunes(id_of_key(sender.key, key)))
    sender.send(*DEPOSIT, key=pruning)
    assert list(ReceivedCommand.objects.values_list("command_id", flat=True)) == [id_of_key(sender.key, pruning)]


@pytest.mark.parametrize("key", ["x" * 256, '"' + "x" * 256 + '"', '""'])
def test_a_key_must_be_an_id(sender: Caller, key: str) -> None:
    assert set(wrong_parts(sender.send(*DEPOSIT, key=key))) == {"Idempotency-Key"}


def test_nothing_is_noted_without_a_key_or_of_what_is_not_valid(sender: Caller) -> None:
    sender.send(*DEPOSIT)
    sender.send("bank.Deposit", "a", {"amount": True}, key="k")
    assert not ReceivedCommand.objects.exists()


@override_settings(ENODE={**REAL_QUEUE, "QUEUE": {"BACKEND": "enode_django.equeue.transports.memory.MemoryTransport"}})
def test_a_command_with_a_key_is_pending_until_it_is_stored(sender: Caller, caller: MakeCaller) -> None:
    from enode_django.bus.command_bus import QueueCommandBus
    from enode_django.runtime import close_bus, make_producer, make_transport, use_bus

    transport = make_transport()
    with use_bus(QueueCommandBus(transport, make_producer(transport), "commands")):
        sender.send(*DEPOSIT, key="k")
    assert sender.get("commands/k/").json() == {"id": id_of_key(sender.key, "k"), "status": "pending"}
    assert problem(caller("send_command", name="other").get("commands/k/"), 404)
    close_bus()
