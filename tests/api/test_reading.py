"""Stored aggregates, events and commands, for clients that may see them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import Client

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    applies,
    command_handler,
    execute_command,
    metadata,
    try_command,
)
from enode_django.api import aggregates, streams
from enode_django.models import EventStream
from enode_django.testing.inline import InlineCommandBus
from sample_project.bank.domain import Deposit, OpenAccount, Withdraw
from tests.api.calls import Caller, problem, wrong_parts
from tests.api.commands import Point, Ship
from tests.api.conftest import MakeCaller


class OpenWallet(Command):
    type_name = "api.OpenWallet"


class WalletOpened(DomainEvent):
    type_name = "api.WalletOpened"


pytestmark = pytest.mark.django_db

ACCOUNT = "aggregates/bank.BankAccount/a/b"
SOMEBODY = "somebody"
"""No number: a user of these tests might have it, and see what it sent itself."""


@pytest.fixture(autouse=True)
def account(bus: InlineCommandBus) -> None:
    with metadata(user_id=SOMEBODY):
        execute_command(OpenAccount("a/b", owner="<b>Ada</b>"))
        execute_command(Deposit("a/b", amount=Decimal("2.50"), id="deposit"))
        execute_command(Deposit("a/b", amount=Decimal("3.50")))
        try_command(Withdraw("a/b", amount=Decimal(9), id="refused"))


@pytest.fixture
def reader(caller: MakeCaller) -> Caller:
    return caller("view_eventstream", "view_payload", name="reader")


@pytest.fixture
def lister(caller: MakeCaller) -> Caller:
    """May see that something happened, and not what."""
    return caller("view_eventstream", name="lister")


def test_the_state_of_an_aggregate_now_and_at_a_version(reader: Caller) -> None:
    now = reader.get(f"{ACCOUNT}/")
    assert now["ETag"] == '"3"'
    body = now.json()
    assert (body["aggregate_root_type"], body["aggregate_root_id"], body["version"]) == ("bank.BankAccount", "a/b", 3)
    assert (body["state"]["owner"], body["state"]["balance"]) == ("<b>Ada</b>", "6.00")
    then = reader.get(f"{ACCOUNT}/", {"version": 2})
    assert (then["ETag"], then.json()["state"]["balance"]) == ('"2"', "2.50")


def test_an_id_that_a_path_cannot_say_is_given_in_the_query(reader: Caller) -> None:
    for id in ("x", "x/events", ".."):
        execute_command(OpenAccount(id, owner=f"owner of {id}"))
    assert reader.get("aggregates/bank.BankAccount/x/events/").json()["results"][0]["aggregate_root_id"] == "x"
    longer = reader.get("aggregates/bank.BankAccount/x/events/events/").json()
    assert longer["results"][0]["aggregate_root_id"] == "x/events"
    for id in ("x/events", ".."):
        body = reader.get("aggregates/bank.BankAccount/", {"id": id}).json()
        assert (body["aggregate_root_id"], body["state"]["owner"]) == (id, f"owner of {id}")
    for query in ({}, {"id": ""}, {"id": "\0"}, {"id": "nobody"}):
        assert problem(reader.get("aggregates/bank.BankAccount/", query), 404)


def test_values_of_every_kind_are_shown(reader: Caller) -> None:
    execute_command(Ship("p", weight=Decimal("1.50"), to=Point(x=Decimal(2)), label=b"ab"))
    state = reader.get("aggregates/api.Parcel/p/").json()["state"]
    assert state == {"weight": "1.50", "label": "YWI=", "to": {"x": "2", "tags": []}}


def test_what_is_known_already_is_not_sent_again(reader: Caller) -> None:
    for known in ('"3"', 'W/"3"', '"1", "3"', "*"):
        response = reader.get(f"{ACCOUNT}/", **{"If-None-Match": known})
        assert (response.status_code, response.content, response["ETag"]) == (304, b"", '"3"')
    assert reader.get(f"{ACCOUNT}/", **{"If-None-Match": '"2"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "aggregates/bank.BankAccount/nobody/",
        "aggregates/bank.MoneyTransfer/a/b/",
        "aggregates/bank.Nothing/a/b/",
        "aggregates/bank.BankAccount/nobody/events/",
        "aggregates/bank.MoneyTransfer/a/b/events/",
        "aggregates/bank.BankAccount/' OR 1=1 --/",
        "aggregates/bank.BankAccount/a%00/",
        f"aggregates/bank.BankAccount/{'a' * 300}/",
        "aggregates/bank.BankAccount/a%0Ab/",
        "commands/unknown/",
        "commands/a%00/",
    ],
)
def test_what_is_not_there_is_not_found(reader: Caller, path: str) -> None:
    assert problem(reader.get(path), 404)


def test_a_version_must_be_there(reader: Caller) -> None:
    assert problem(reader.get(f"{ACCOUNT}/", {"version": 4}), 404)["type"] == "urn:problem-type:enode:unknown-version"
    for wrong in ("0", "-1", "x", "1.0", "²", "9" * 30, ""):
        assert set(wrong_parts(reader.get(f"{ACCOUNT}/", {"version": wrong}))) == {"version"}


def test_the_events_of_an_aggregate_come_in_pages(reader: Caller) -> None:
    first = reader.get(f"{ACCOUNT}/events/", {"limit": 2}).json()
    assert [row["version"] for row in first["results"]] == [1, 2]
    assert (first["after"], first["more"], first["version"]) == (2, True, 3)
    opened = first["results"][0]
    assert opened["events"] == [{"type": "bank.AccountOpened", "schema_version": 1, "fields": {"owner": "<b>Ada</b>"}}]
    assert opened["metadata"]["user"] == SOMEBODY
    last = reader.get(f"{ACCOUNT}/events/", {"after": first["after"]}).json()
    assert [row["events"][0]["fields"]["amount"] for row in last["results"]] == ["3.50"]
    assert not last["more"]
    assert reader.get(f"{ACCOUNT}/events/", {"after": 3}).json()["results"] == []


def test_pages_end_where_their_rows_have_many_bytes(reader: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_PIECE", 1)
    monkeypatch.setattr(streams, "PAGE_BYTES", 1)
    versions, after, more = [], 0, True
    while more:
        page = reader.get(f"{ACCOUNT}/events/", {"after": after}).json()
        versions += [[row["version"] for row in page["results"]]]
        after, more = page["after"], page["more"]
    assert versions == [[1], [2], [3]]


def test_events_are_readable_when_their_class_is_gone_and_the_state_is_not(reader: Caller) -> None:
    EventStream.unprotected.filter(aggregate_root_id="a/b").update(aggregate_root_type="bank.Gone")
    assert len(reader.get("aggregates/bank.Gone/a/b/events/").json()["results"]) == 3
    assert problem(reader.get("aggregates/bank.Gone/a/b/"), 409)["type"] == "urn:problem-type:enode:no-state"


def test_a_history_that_is_too_long_for_a_request_is_not_replayed(
    reader: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "MOST_REPLAYED", 2)
    found = problem(reader.get(f"{ACCOUNT}/"), 409)
    assert found["type"] == "urn:problem-type:enode:no-state"
    assert found["detail"].startswith("3 streams of 'a/b' would have to be replayed, and 2 is the most;")
    assert reader.get(f"{ACCOUNT}/", {"version": 2}).json()["state"]["balance"] == "2.50"


def test_bytes_that_nobody_can_read_are_said_to_be(reader: Caller) -> None:
    EventStream.unprotected.filter(command_id="deposit").update(events=b"\xff\xff")
    rows = reader.get(f"{ACCOUNT}/events/").json()["results"]
    assert "not a format of ours" in rows[1]["unreadable"]


def test_whoever_may_not_see_payloads_sees_that_something_happened(lister: Caller) -> None:
    rows = lister.get(f"{ACCOUNT}/events/").json()["results"]
    assert rows[0].keys() == {
        *("aggregate_root_type", "aggregate_root_id", "version", "command_id", "command_type", "created_at"),
    }
    assert problem(lister.get(f"{ACCOUNT}/"), 403)
    assert lister.get("commands/refused/").json() == {"id": "refused", "aggregate_root_id": "a/b", "status": "refused"}
    assert not {"value", "event_types"} & lister.get("commands/deposit/").json().keys()


@pytest.mark.parametrize("path", [f"{ACCOUNT}/", f"{ACCOUNT}/events/", "events/", "events/stream/"])
def test_whoever_may_see_nothing_sees_nothing(caller: MakeCaller, path: str) -> None:
    assert problem(caller("send_command", "view_payload").get(path), 403)
    assert problem(Caller(Client()).get(path), 403)


def test_a_command_is_shown_to_those_who_may_see_it(reader: Caller, sender: Caller) -> None:
    assert reader.get("commands/deposit/").json()["value"] == "2.50"
    assert reader.get("commands/deposit/", {"aggregate_root_id": "a/b"}).status_code == 200
    assert problem(reader.get("commands/deposit/", {"aggregate_root_id": "c"}), 404)
    assert problem(sender.get("commands/deposit/"), 404)


@pytest.mark.parametrize(("path", "name"), [("events/", "cursor"), ("events/stream/", "cursor")])
@pytest.mark.parametrize("cursor", ["x", "é", "' OR 1=1", "MDox", "LTE6MC4xLjE", "MDowLjEuMQ,", "MDow,,,,LjEuMQ"])
def test_a_cursor_that_nobody_gave_is_refused(reader: Caller, path: str, name: str, cursor: str) -> None:
    assert set(wrong_parts(reader.get(path, {name: cursor}))) == {name}


class Wallet(AggregateRoot):
    type_name = "api.Wallet"
    id_prefix = "wallet-"

    @command_handler(creates=True)
    def open(self, command: OpenWallet) -> None:
        self.apply(WalletOpened())

    @applies
    def _opened(self, event: WalletOpened) -> None: ...


def test_an_id_may_be_typed_with_its_prefix_or_without(reader: Caller) -> None:
    execute_command(OpenWallet("wallet-ada"))
    for typed in ("ada", "wallet-ada"):
        body = reader.get(f"aggregates/api.Wallet/{typed}/").json()
        assert (body["aggregate_root_id"], body["version"]) == ("wallet-ada", 1)
        assert reader.get(f"aggregates/api.Wallet/{typed}/events/").json()["version"] == 1


def test_what_was_stored_before_there_was_a_prefix_stays_readable(
    reader: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Wallet, "id_prefix", "")
        execute_command(OpenWallet("old"))
    assert reader.get("aggregates/api.Wallet/old/events/").json()["version"] == 1
    assert problem(reader.get("aggregates/api.Wallet/old/"), 409)["type"] == "urn:problem-type:enode:no-state"
