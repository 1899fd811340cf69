"""Events that JSON cannot hold, or nobody can read, do not keep the others from being read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.test import override_settings

from enode_django import AggregateRoot, Command, CommandContext, DomainEvent, applies, command_handler, execute_command
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import CommandFailed, InvalidField, MalformedMessage
from enode_django.models import EventStream
from enode_django.serialization.codec import COMMAND_FORMAT, STREAM, decode_command, restore_command
from enode_django.serialization.plain import MOST_DIGITS, pack
from enode_django.testing.event_store_read_contract import stream
from enode_django.testing.inline import InlineCommandBus
from enode_django.web.failures import status_of
from tests.admin.test_streams import BYTES
from tests.api.calls import Caller, problem, wrong_parts
from tests.api.conftest import MakeCaller
from tests.api.test_feed import BRIEF, events_of

pytestmark = pytest.mark.django_db(transaction=True)

LARGEST = 10**MOST_DIGITS - 1


class Multiply(Command):
    type_name = "api.Multiply"
    by: int


class Multiplied(DomainEvent):
    type_name = "api.Multiplied"
    product: int


class Product(AggregateRoot):
    type_name = "api.Product"
    product: int = 1

    @applies(Multiplied)
    def _multiplied(self, event: Multiplied) -> None:
        self.product = event.product


@command_handler(Multiply)
def multiply(command: Multiply, context: CommandContext) -> None:
    product = context.find(Product)
    if product is None:
        product = Product(command.aggregate_root_id)
        context.add(product)
    product.apply(Multiplied(product=product.product * command.by))
    context.set_result(product.product)


@pytest.fixture
def reader(transactional_db: None, bus: InlineCommandBus, caller: MakeCaller) -> Caller:
    return caller("view_eventstream", "view_payload", "send_command")


def test_a_number_that_no_command_may_have_is_refused_on_every_way(reader: Caller) -> None:
    assert reader.send("api.Multiply", "p", {"by": LARGEST}, query="?wait=executed").status_code == 200
    told = wrong_parts(reader.send("api.Multiply", "p", {"by": 10 * LARGEST * 9}))
    assert told.keys() == {"#/fields/by"}
    assert "send at most 1000" in told["#/fields/by"]
    with pytest.raises(InvalidField, match="at most 1000 digits"):
        execute_command(Multiply("p", by=10 * LARGEST))
    foreign = pack((COMMAND_FORMAT, "api.Multiply", "c", "p", {"by": LARGEST**2}, b"", ""))
    with pytest.raises(InvalidField, match=r"Multiply.by: expected int, got a number of \d+ bits, which is too long"):
        restore_command(decode_command(foreign))


@override_settings(ENODE={"API": BRIEF})
def test_numbers_that_grew_too_long_for_json_are_hexadecimal_text_wherever_they_are_shown(reader: Caller) -> None:
    for number in range(5):
        answer = reader.send("api.Multiply", "p", {"by": LARGEST}, query="?wait=executed", key=f"c{number}")
    assert answer.status_code == 200
    written = hex(LARGEST**5)
    assert answer.json()["value"] == written
    assert reader.get("commands/c4/").json()["value"] == written
    assert reader.get("aggregates/api.Product/p/").json()["state"] == {"product": written}
    events = reader.get("aggregates/api.Product/p/events/").json()["results"]
    feed = reader.get("events/").json()["results"]
    streamed = reader.get("events/stream/", {"cursor": feed[0]["cursor"]}).streaming_content
    for rows in (events, feed, events_of(b"".join(streamed))):
        assert [row["events"][0]["fields"]["product"] for row in rows][-2:] == [LARGEST**4, written]


def planted(contents: Sequence[tuple[bytes, bytes]]) -> Iterator[EventStream]:
    for number, (events, metadata) in enumerate(contents):
        fields = stream(f"p{number:02}", 1)._asdict() | {"command_id": f"c{number}"}
        yield EventStream(**{**fields, "events": events, "metadata": metadata})


def test_a_stored_event_that_does_not_fit_its_class_is_not_the_fault_of_the_sender(reader: Caller) -> None:
    grown = STREAM + pack(([["api.Multiplied", 1, {"result": 6}]], None))
    unfit = stream("p", 1, events=grown, metadata=b"")._replace(aggregate_root_type="api.Product")
    PostgresEventStore().append([unfit])
    answer = reader.send("api.Multiply", "p", {"by": 2}, query="?wait=executed")
    assert problem(answer, 500)["detail"] == "the command failed, and took no effect"
    with pytest.raises(CommandFailed) as caught:
        execute_command(Multiply("p", by=2))
    assert (status_of(caught.value), caught.value.error_type) == (500, "MalformedMessage")
    with pytest.raises(MalformedMessage, match=r"version 1 of aggregate .p., cannot be read: Multiplied\.product is"):
        Product.load("p")


def test_a_row_that_nobody_can_read_is_shown_as_such_among_the_others(reader: Caller) -> None:
    deep: Any = 10**5_000
    for _ in range(500):
        deep = [deep]
    contents = [*BYTES, (STREAM + pack(([["deep", 1, {"x": deep}]], {2.5: float("nan")})), b"")]
    EventStream.unprotected.bulk_create(planted(contents))
    good = STREAM + pack(([["good", 1, {}]], None))
    PostgresEventStore().append([stream("good", 1, events=good, metadata=b"")])
    page = reader.get("events/").json()
    assert len(page["results"]) == len(contents) + 1
    for number, row in enumerate(page["results"][:-1]):
        assert row["aggregate_root_id"] == f"p{number:02}"
        assert row["version"] == 1
        assert row["cursor"]
        assert ("unreadable" in row) != ("metadata" in row)
    assert page["results"][-1]["events"]
    assert sum("unreadable" in row for row in page["results"]) >= 5
    alone = reader.get("aggregates/bank.BankAccount/p00/events/").json()
    assert json.dumps(alone["results"][0]["unreadable"])


def test_a_command_whose_row_nobody_can_read_says_so(reader: Caller) -> None:
    EventStream.unprotected.bulk_create(planted(BYTES))
    told = [reader.get(f"commands/{row.command_id}/") for row in EventStream.objects.order_by("sequence")]
    assert len(told) == len(BYTES)
    for answer in told:
        if answer.status_code != 200:
            assert problem(answer, 409)["type"] == "urn:problem-type:enode:unreadable"
    assert sum(answer.status_code == 409 for answer in told) >= 5
