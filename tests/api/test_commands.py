"""``POST commands/``: accepted bodies, permitted senders, and answers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, override_settings
from django.urls import resolve
from rest_framework.throttling import ScopedRateThrottle, UserRateThrottle

from enode_django import Metadata, execute_command
from enode_django.api.base import ApiView, Throttle, throttles
from enode_django.api.commands import CommandsView
from enode_django.api.outcomes import problem_of
from enode_django.exceptions import CommandFailed, MessageTooLarge
from enode_django.ids import id_of_key
from enode_django.models import EventStream
from enode_django.testing.inline import InlineCommandBus
from enode_django.web.failures import BROKEN, status_of, text_of
from tests.api import commands
from tests.api.calls import COMMANDS, Caller, problem, wrong_parts
from tests.api.conftest import MakeCaller

pytestmark = pytest.mark.django_db

OPEN = json.dumps({"type": "bank.OpenAccount", "aggregate_root_id": "a", "fields": {"owner": "Ada"}})


def test_a_command_is_sent_and_can_be_asked_about(sender: Caller, bus: InlineCommandBus) -> None:
    response = sender.post(OPEN)
    assert response.status_code == 202
    sent = response.json()
    assert sent == {"id": sent["id"], "aggregate_root_id": "a", "status": "sent"}
    assert response["Location"] == f"/api/commands/{sent['id']}/"
    outcome = sender.client.get(response["Location"])
    assert outcome.json()["status"] == "success"
    assert outcome.json()["version"] == 1
    assert [event.metadata.user_id for event in bus.events] == [str(sender.user.pk)]  # type: ignore[union-attr]


@pytest.mark.parametrize("wait", ["executed", "handled"])
def test_who_waits_gets_the_result(sender: Caller, bus: InlineCommandBus, wait: str) -> None:
    assert sender.send("bank.OpenAccount", "a", {"owner": "Ada"}).status_code == 202
    response = sender.send("bank.Deposit", "a", {"amount": "12.50"}, query=f"?wait={wait}&timeout=5", key="k")
    assert response.status_code == 200
    assert response["ETag"] == '"2"'
    assert response.json() == {
        "id": id_of_key(sender.key, "k"),
        "aggregate_root_id": "a",
        "status": "success",
        "version": 2,
        "value": "12.50",
        "event_types": ["bank.Deposited"],
        "parked": [],
    }


def test_fields_of_every_type_arrive(sender: Caller, bus: InlineCommandBus) -> None:
    fields = {
        "weight": "1.50",
        "to": {"x": "2", "tags": ["a"]},
        "size": 2,
        "at": "2026-01-31T13:00:00+01:00",
        "day": "2026-01-31",
        "key": "00000000-0000-0000-0000-000000000001",
        "label": "YWI=",
        "tags": ["x", "y"],
        "rates": {"1": "0.10"},
        "stops": [{"x": "3"}],
        "share": 0.5,
        "fragile": True,
    }
    response = sender.send("api.Ship", "p", fields, query="?wait=executed")
    assert response.json()["value"] == {
        "rates": {"1": "0.10"},
        "at": "2026-01-31T12:00:00+00:00",
        "tags": ["x", "y"],
    }
    (event,) = bus.events
    assert event == commands.Shipped(weight=Decimal("1.50"), label=b"ab", to=commands.Point(x=Decimal(2), tags=("a",)))


def test_a_refusal_is_a_conflict_with_its_fields(sender: Caller, bus: InlineCommandBus) -> None:
    sender.send("bank.OpenAccount", "a", {"owner": "Ada"})
    found = problem(sender.send("bank.Withdraw", "a", {"amount": "5"}, query="?wait=executed", key="k"), 409)
    assert found["type"] == "urn:problem-type:bank.InsufficientFunds"
    assert found["detail"] == "the balance is too low"
    assert (found["balance"], found["amount"], found["command_id"]) == ("0", "5", id_of_key(sender.key, "k"))
    again = sender.get("commands/k/").json()
    assert again["status"] == "refused"
    assert again["problem"]["type"] == found["type"]
    assert again["problem"]["amount"] == "5"


def test_fields_of_a_refusal_do_not_hide_members(sender: Caller, bus: InlineCommandBus) -> None:
    found = problem(sender.send("api.Break", "a", {"how": "lost"}, query="?wait=executed"), 409)
    assert (found["status"], found["status_"]) == (409, "gone")
    assert found["where"] == {"x": "1.50", "tags": []}


@pytest.mark.parametrize(
    ("type_name", "fields", "status", "kind"),
    [
        ("bank.Deposit", {"amount": "1"}, 404, "enode:AggregateNotFound"),
        ("api.Break", {"how": "invalid"}, 400, "enode:InvalidField"),
        ("bank.StartTransfer", {"source": "", "target": "b", "amount": "1"}, 400, "enode:InvalidId"),
        ("api.Break", {"how": "worse"}, 500, "enode:failed"),
    ],
)
def test_other_failures_have_a_status_of_their_own(
    sender: Caller, bus: InlineCommandBus, type_name: str, fields: Any, status: int, kind: str
) -> None:
    response = sender.send(type_name, "a", fields, query="?wait=executed")
    assert problem(response, status)["type"] == f"urn:problem-type:{kind}"
    assert b"swordfish" not in response.content


def test_a_crash_that_a_process_manager_handles_tells_nobody_else_what_it_was(bus: InlineCommandBus) -> None:
    """It is stored as a refusal, but is none that was meant for people."""
    crashing = commands.Break("a", id="k", how="worse")
    bus.forward([(crashing, Metadata())], lambda command: "api.process")
    assert EventStream.objects.filter(command_id="k", version=None).exists()
    with pytest.raises(CommandFailed) as caught:
        execute_command(crashing)
    told = problem_of(caught.value)
    assert told.body["type"] == "urn:problem-type:enode:failed"
    assert status_of(caught.value) == told.status_code == BROKEN
    assert "swordfish" not in f"{told.body} {text_of(caught.value)}"


def test_an_aggregate_is_not_made_twice(sender: Caller, bus: InlineCommandBus) -> None:
    sender.post(OPEN)
    found = problem(sender.post(OPEN, "?wait=executed"), 409)
    assert found["type"] == "urn:problem-type:enode:AggregateAlreadyExists"


def test_the_version_that_is_expected_must_be_there(sender: Caller, bus: InlineCommandBus) -> None:
    assert sender.post(OPEN, "?wait=executed", If_Match='"0"').status_code == 200
    assert sender.send("bank.Deposit", "a", {"amount": "1"}, query="?wait=executed", If_Match='"1"').status_code == 200
    found = problem(sender.send("bank.Deposit", "a", {"amount": "1"}, query="?wait=executed", If_Match='"1"'), 412)
    assert (found["expected_version"], found["version"]) == (1, 2)
    assert sender.get(f"commands/{found['command_id']}/").json()["problem"]["status"] == 412
    assert "If-Match" in wrong_parts(sender.post(OPEN, If_Match="W/1"))
    assert sender.send("bank.Deposit", "a", {"amount": "1"}, query="?wait=executed", If_Match="*").status_code == 200


# -- invalid requests -------------------------------------------------------------------------------------------------


def test_all_that_is_wrong_is_told_with_its_place(sender: Caller) -> None:
    fields = {"weight": 1.5, "to": {"x": "two"}, "stops": [{"x": "1"}, 7], "size": "2", "colour": "red"}
    assert set(wrong_parts(sender.send("api.Ship", "p", fields))) == {
        "#/fields/weight",
        "#/fields/to/x",
        "#/fields/stops/1",
        "#/fields/size",
        "#/fields/colour",
    }
    assert wrong_parts(sender.send("bank.Deposit", "p")) == {"#/fields/amount": "this field is required"}
    assert "1 to 255" in wrong_parts(sender.send("bank.CloseAccount", ""))["#/aggregate_root_id"]


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, {"#/type", "#/aggregate_root_id"}),
        ({"type": 5, "aggregate_root_id": None}, {"#/type", "#/aggregate_root_id"}),
        ({"type": "bank.CloseAccount", "aggregate_root_id": "a", "id": "mine"}, {"#/id"}),
        ({"type": "bank.CloseAccount", "aggregate_root_id": "a", "fields": []}, {"#/fields"}),
        ({"type": "bank.CloseAccount", "aggregate_root_id": "a\0", "fields": {}}, {"#/aggregate_root_id"}),
        ({"type": "bank.OpenAccount", "aggregate_root_id": "a", "fields": {"owner": "\0"}}, {"#/fields/owner"}),
        ({"type": "bank.OpenAccount", "aggregate_root_id": "a", "fields": {"owner": "\ud800"}}, {"#/fields/owner"}),
        ({"type": "bank.CloseAccount", "aggregate_root_id": "a", "fields": {"a/~b": 1}}, {"#/fields/a~1~0b"}),
        ({"type": "bank.CloseAccount", "aggregate_root_id": "a", "fields": {"\ud800": 1}}, {"#/fields/%ED%A0%80"}),
    ],
)
def test_a_body_of_another_shape_is_refused(sender: Caller, body: Any, pointers: set[str]) -> None:
    assert set(wrong_parts(sender.post(json.dumps(body)))) == pointers


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not in UTF-8"),
        (b'{"type": "bank.Deposit", "type": "bank.Withdraw"}', "the key 'type' is there twice"),
        (b'{"fields": {"amount": NaN}}', "NaN is no JSON"),
        (b'{"fields": {"amount": -Infinity}}', "-Infinity is no JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused(sender: Caller, body: bytes, detail: str) -> None:
    found = problem(sender.post(body), 400)
    assert detail in found["detail"]
    assert found["type"] == "urn:problem-type:enode:invalid"
    assert found["errors"] == [{"pointer": "#", "detail": found["detail"]}]


def test_a_key_that_is_there_twice_among_very_many_costs_little(sender: Caller) -> None:
    """Looking for each among all the others would keep a worker busy for minutes."""
    many = ",".join(f'"{number}":0' for number in range(80_000))
    found = problem(sender.post(f'{{{many},"79999":1}}'), 400)
    assert "the key '79999' is there twice" in found["detail"]


def test_not_every_of_very_many_wrong_members_is_listed(sender: Caller) -> None:
    assert len(wrong_parts(sender.post(json.dumps({f"m{number}": 0 for number in range(5_000)})))) == 50


def test_deep_values_in_a_field_are_refused_in_its_place(sender: Caller) -> None:
    deep = '{"type": "bank.OpenAccount", "aggregate_root_id": "a", "fields": {"owner": ' + "[" * 300 + "]" * 300 + "}}"
    assert set(wrong_parts(sender.post(deep))) == {"#/fields/owner"}


@override_settings(ENODE={"API": {"MAX_BODY": 200}})
def test_a_body_that_is_too_large_is_not_parsed(sender: Caller) -> None:
    found = problem(sender.post(b"{" + b" " * 200), 413)
    assert found["max_bytes"] == 200
    assert problem(sender.post(b"{" + b" " * 199), 400)


@pytest.mark.parametrize("query", ["?wait=for+ever", "?timeout=0", "?timeout=nan", "?timeout=1e9", "?timeout=soon"])
def test_wishes_that_cannot_be_had_are_refused(sender: Caller, query: str) -> None:
    assert set(wrong_parts(sender.post(OPEN, query))) <= {"wait", "timeout"}


def test_other_methods_and_media_types_are_problems_too(sender: Caller) -> None:
    assert problem(sender.client.put(COMMANDS, OPEN, content_type="application/json"), 405)
    assert problem(sender.client.post(COMMANDS, {"type": "bank.Deposit"}), 415)
    assert problem(sender.client.get(COMMANDS), 405)
    assert problem(sender.post(OPEN, Accept="image/png"), 406)


# -- from whom --------------------------------------------------------------------------------------------------------


def test_nobody_learns_what_there_is_without_logging_in(bus: InlineCommandBus) -> None:
    nobody = Caller(Client())
    known, unknown = (nobody.send(name, "a", {"amount": "1"}) for name in ("bank.Deposit", "bank.Nothing"))
    assert problem(known, 403) == problem(unknown, 403)
    assert problem(nobody.send("api.Internal", "a"), 403) == problem(unknown, 403)
    assert problem(nobody.get("commands/k/"), 403)
    assert not bus.results


def test_sending_needs_a_permission(caller: MakeCaller, bus: InlineCommandBus) -> None:
    clerk = caller()
    assert problem(clerk.post(OPEN), 403)
    assert problem(clerk.send("bank.OpenAccount", "a", {"wrong": 1}), 403)
    assert problem(clerk.send("bank.Nothing", "a"), 404)["type"] == "urn:problem-type:enode:unknown-type"
    assert not bus.results
    assert caller("send_command").post(OPEN).status_code == 202


def test_a_command_that_is_not_offered_is_as_one_that_is_not_there(sender: Caller) -> None:
    for name in ("api.Internal", "api.Unhandled", "bank.AccountOpened", "bank.BankAccount", "enode.Command"):
        assert problem(sender.send(name, "a"), 404)["type"] == "urn:problem-type:enode:unknown-type"


def test_a_class_can_have_permissions_of_its_own(caller: MakeCaller, bus: InlineCommandBus) -> None:
    assert Caller(Client()).send("api.Track", "a").status_code == 202
    clerk = caller()
    assert clerk.send("api.Own", "clerk-7").status_code == 202
    assert problem(clerk.send("api.Own", "somebody-7"), 403)


def test_settings_can_give_permissions(caller: MakeCaller, bus: InlineCommandBus) -> None:
    offered = {
        "bank.OpenAccount": ["rest_framework.permissions.IsAuthenticated"],
        "api.Own": ["enode_django.view_eventstream"],
        "bank.*": [],
        "*": ["enode_django.view_payload"],
    }
    with override_settings(ENODE={"API": {"COMMANDS": offered}}):
        clerk = caller()
        assert clerk.post(OPEN).status_code == 202
        assert problem(clerk.send("bank.CloseAccount", "a"), 404)
        assert problem(clerk.send("api.Own", "clerk-7"), 403)
        assert problem(clerk.send("api.Ship", "clerk-7"), 403)
        viewer = caller("view_eventstream", "view_payload", name="viewer")
        assert viewer.send("api.Own", "clerk-7").status_code == 202
        assert problem(viewer.send("api.Ship", "clerk-7"), 400)


def test_a_session_needs_the_csrf_token(sender: Caller, bus: InlineCommandBus) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="clerk"))
    assert "CSRF" in problem(Caller(strict).post(OPEN), 403)["detail"]
    assert not EventStream.objects.exists()


def test_a_command_is_never_sent_in_a_transaction_of_the_request() -> None:
    """In a transaction of ATOMIC_REQUESTS, for any database, the command would be executed before the data that it
    rests on is durable."""
    assert resolve(COMMANDS).func._non_atomic_requests == set(connections)  # type: ignore[attr-defined]
    try:
        connections.settings["another"] = connections.settings["default"]
        assert "another" in CommandsView.as_view()._non_atomic_requests
    finally:
        del connections.settings["another"]


@override_settings(REST_FRAMEWORK={**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": {"enode-commands": "2/hour"}})
def test_too_many_commands_are_too_many(sender: Caller, bus: InlineCommandBus) -> None:
    assert [sender.send("api.Ship", "a").status_code for _ in range(2)] == [400, 400]
    response = sender.send("api.Ship", "a")
    assert problem(response, 429)
    assert int(response["Retry-After"]) > 0
    assert sender.get("commands/k/").status_code == 404  # asking is another matter


def test_the_frameworks_throttle_for_scopes_counts_no_request_again() -> None:
    """A project may have it among its DEFAULT_THROTTLE_CLASSES for its own views."""
    assert throttles([ScopedRateThrottle, UserRateThrottle]) == [Throttle, UserRateThrottle]
    assert ApiView.throttle_classes[0] is Throttle


def test_a_browser_gets_the_frameworks_page(sender: Caller, bus: InlineCommandBus) -> None:
    hostile = "<script>alert(1)</script>"
    sender.send("bank.OpenAccount", "a", {"owner": hostile}, key=hostile, query="?wait=executed")
    for id in (hostile, "unknown" + hostile):
        page = sender.client.get(f"/api/commands/{id}/", headers={"Accept": "text/html"})
        assert page["Content-Type"].startswith("text/html")
        assert hostile.encode() not in page.content
        assert b"alert(1)" in page.content


@pytest.mark.parametrize("query", ["", "?wait=executed"])
def test_a_command_that_the_queue_does_not_take_is_too_large(
    sender: Caller, bus: InlineCommandBus, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """The project may allow larger bodies than the queue takes."""

    def refuse(*arguments: object) -> None:
        raise MessageTooLarge("a message of 9 bytes is above the 8 that the queue takes")

    monkeypatch.setattr(bus, "send", refuse)
    monkeypatch.setattr(bus, "execute", refuse)
    assert problem(sender.post(OPEN, query), 413)["type"] == "urn:problem-type:enode:MessageTooLarge"
