"""Scheduled commands and deadlines in the admin."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from enode_django.admin.operating import CONFIRMED
from enode_django.models import OperatorAction, OutboxCommand, ScheduledCommand
from enode_django.scheduling import rows
from enode_django.serialization.codec import encode_command
from sample_project.bank.domain import Deposit, OpenAccount
from tests.admin.people import logged_in, without_times

pytestmark = pytest.mark.django_db
LIST = "/admin/enode_django/scheduledcommand/"
FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def waiting() -> list[ScheduledCommand]:
    body = encode_command(Deposit("ada", amount=Decimal("2.50"), id="d"), b"")
    given = {"aggregate_root_id": "ada", "body": body, "due_at": FUTURE}
    return [
        ScheduledCommand.objects.create(**given, command_id="plain"),
        ScheduledCommand.objects.create(
            **given, command_id="deadline", subscriber="bank.transfers", scope="t1", name="confirmed"
        ),
    ]


def act(client: Client, action: str, row: ScheduledCommand, *, confirmed: bool = True) -> str:
    chosen = {"action": action, "_selected_action": row.pk, "reason": "the customer called"}
    confirmation = {CONFIRMED: "yes"} if confirmed else {}
    return html.unescape(client.post(LIST, {**chosen, **confirmation}, follow=True).content.decode())


def actions() -> list[tuple[str, str, str]]:
    return list(OperatorAction.objects.order_by("pk").values_list("action", "object_id", "reason"))


def test_they_are_listed_and_nobody_changes_them(client: Client, waiting: list[ScheduledCommand]) -> None:
    logged_in(client, "view_scheduledcommand")
    page = client.get(LIST).content.decode()
    assert "bank.Deposit plain for ada" in page
    assert "confirmed" in page
    assert 'name="action"' not in page
    shown = client.get(f"{LIST}{waiting[1].pk}/change/").content.decode()
    assert "2999-01-01" in shown
    assert "2.50" not in without_times(shown)
    assert client.post(f"{LIST}{waiting[1].pk}/change/", {"name": "x"}).status_code == 403
    assert client.get(f"{LIST}?q=t1").content.decode().count("for ada</a>") == 1


@pytest.mark.parametrize("number", [0, 1])
def test_cancelling_is_confirmed_and_recorded(client: Client, waiting: list[ScheduledCommand], number: int) -> None:
    logged_in(client, "change_scheduledcommand")
    row = waiting[number]
    asked = act(client, "cancel", row, confirmed=False)
    assert f"It concerns the bank.Deposit {row.command_id} for ada, due at 2999-01-01" in asked
    assert ScheduledCommand.objects.count() == 2
    assert "1 of 1 commands were cancelled" in act(client, "cancel", row)
    assert [left.pk for left in ScheduledCommand.objects.all()] == [waiting[1 - number].pk]
    assert actions() == [("cancel", row.command_id, "the customer called")]


def test_the_title_of_its_page_names_its_type(client: Client, waiting: list[ScheduledCommand]) -> None:
    page = logged_in(client, "view_scheduledcommand").get(f"{LIST}{waiting[0].pk}/change/").content.decode()
    assert "<h2>bank.Deposit plain for ada</h2>" in page


def test_a_list_takes_no_query_for_each_row_and_reads_no_whole_messages(
    client: Client, waiting: list[ScheduledCommand]
) -> None:
    logged_in(client, "view_scheduledcommand")
    with CaptureQueriesContext(connection) as two:
        client.get(LIST)
    long = encode_command(OpenAccount("bob", owner="x" * 100_000, id="long"), b"")
    given = {"aggregate_root_id": "bob", "body": long, "due_at": FUTURE}
    ScheduledCommand.objects.bulk_create(ScheduledCommand(**given, command_id=f"long-{n}") for n in range(20))
    with CaptureQueriesContext(connection) as many:
        page = client.get(LIST).content.decode()
    assert page.count("bank.OpenAccount long-") == 20
    assert len(many) == len(two)
    read = [one["sql"].replace('SUBSTRING("enode_django_scheduledcommand"."body"', "") for one in many]
    assert not [statement for statement in read if '"body"' in statement]


def test_the_filters_read_an_index_for_each_subscriber_and_the_names_that_are_due_first(
    client: Client, waiting: list[ScheduledCommand]
) -> None:
    logged_in(client, "view_scheduledcommand")
    given = {"aggregate_root_id": "bob", "body": b"", "subscriber": "bank.cards", "due_at": FUTURE}
    ScheduledCommand.objects.create(**given, command_id="card", scope="c1", name="expired")
    with CaptureQueriesContext(connection) as asked:
        page = client.get(LIST).content.decode()
    offered = set(re.findall(r'"\?((?:subscriber|name)=[^"]*)"', page))
    subscribers = {"subscriber=", "subscriber=bank.cards", "subscriber=bank.transfers"}
    assert offered == {*subscribers, "name=", "name=confirmed", "name=expired"}
    assert re.findall(r'"\?(?:subscriber|name)=">([^<]*)</a>', page) == ["none", "none"]
    column = '"enode_django_scheduledcommand"."{}"'.format
    queries = [one["sql"] for one in asked]
    filters = [one for one in queries if re.match(f"SELECT (DISTINCT )?{column('(subscriber|name)')}.* FROM", one)]
    assert len(filters) == 5, "whether there are any without one, a query for each subscriber, an end, and the names"
    for query in filters:
        with connection.cursor() as cursor:
            for other in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{other} = off")
            cursor.execute(f"EXPLAIN SELECT * FROM ({query}) AS asked LIMIT 10000")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert re.search("Index (Only )?Scan using enode_", plan)
        assert not re.search("Sort|Unique|Aggregate", plan)


def test_firing_is_confirmed_with_the_type(client: Client, waiting: list[ScheduledCommand]) -> None:
    asked = act(logged_in(client, "change_scheduledcommand"), "fire", waiting[0], confirmed=False)
    assert "It concerns the bank.Deposit plain for ada, due at 2999-01-01" in asked


def test_firing_makes_it_due_and_is_recorded(client: Client, waiting: list[ScheduledCommand]) -> None:
    logged_in(client, "change_scheduledcommand")
    assert "1 of 1 commands were given to the relay" in act(client, "fire", waiting[0])
    assert rows.fire("default") > 1e9
    assert OutboxCommand.objects.get().command_id == "plain"
    assert actions() == [("fire", "plain", "the customer called")]
