"""Parked events and rebuilds of projections with a database of their own."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client, override_settings
from pytest_django import DjangoDbBlocker

from enode_django.eventing.parking import Parked, park
from enode_django.eventstore.base import StreamRecord
from enode_django.models import GenerationCheck, OperatorAction, ParkedEvent, Rebuild
from enode_django.operating.actions import Done, record
from enode_django.runtime import make_store
from enode_django.serialization.codec import encode_stream
from sample_project.bank.domain import AccountOpened
from sample_project.bank.models import AccountSummary
from tests.admin.people import logged_in
from tests.integration.store_sessions import database_alias
from tests.template import migrated

pytestmark = pytest.mark.django_db(transaction=True)
ALIAS, SUBSCRIBER = "reporting", "bank.AccountSummaries"
PARKED, REBUILDS = "/admin/enode_django/parkedevent/", "/admin/enode_django/rebuild/"
ERASED = "/admin/enode_django/generationcheck/"


class Router:
    """The summaries lie in a database of their own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return ALIAS if model is AccountSummary else None

    db_for_write = db_for_read


@pytest.fixture(scope="module")
def database(postgres_url: str, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    name = f"reporting_{uuid.uuid4().hex}"
    with django_db_blocker.unblock():
        parameters = connection.get_connection_params() | {"dbname": "postgres"}
        for key in ("context", "cursor_factory"):
            parameters.pop(key, None)
        with closing(psycopg.connect(**parameters, autocommit=True)) as session:
            session.execute(f"CREATE DATABASE {name} TEMPLATE {migrated(postgres_url)}")
            yield name
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(autouse=True)
def parked(database: str, transactional_db: None) -> Iterator[ParkedEvent]:
    """An account that is stored, and parked in the database of the summaries."""
    now = datetime.now(UTC)
    stored = encode_stream([AccountOpened(owner="Ada")])
    make_store().append([StreamRecord("a", 1, "open-a", "bank.BankAccount", "bank.OpenAccount", now, stored, b"")])
    with database_alias(ALIAS, NAME=database), override_settings(DATABASE_ROUTERS=[f"{__name__}.Router"]):
        for model in (ParkedEvent, Rebuild, AccountSummary):
            model._default_manager.using(ALIAS).delete()
        row = (SUBSCRIBER, "bank.BankAccount", "a", 1, "open-a", "ValueError", "no owner", 3, now, now)
        park(ALIAS, Parked(*row))
        yield ParkedEvent.objects.using(ALIAS).get()


@pytest.fixture
def operator(client: Client) -> Client:
    return logged_in(client, "change_parkedevent", "change_rebuild", "view_subscriber", "view_payload")


def test_what_is_parked_is_found_in_the_database_that_is_chosen(operator: Client, parked: ParkedEvent) -> None:
    assert operator.get(PARKED).context["cl"].result_count == 0
    page = operator.get(PARKED, {"database": ALIAS})
    assert list(page.context["cl"].result_list) == [parked]
    (link,) = re.findall(rf'"({PARKED}{parked.pk}/change/[^"]*)"', page.content.decode())
    assert "no owner" in operator.get(html.unescape(link)).content.decode()
    narrowed = operator.get(PARKED, {"database": ALIAS, "subscriber": "bank.Ledger"})
    assert narrowed.context["cl"].result_count == 0


def test_it_is_retried_there(operator: Client, parked: ParkedEvent) -> None:
    chosen = {"action": "retry", "_selected_action": [parked.pk]}
    page = operator.post(f"{PARKED}?database={ALIAS}", chosen, follow=True)
    assert [str(message) for message in page.context["messages"]] == [f"subscriber {SUBSCRIBER}: a goes on"]
    assert not ParkedEvent.objects.using(ALIAS).exists()
    assert AccountSummary.objects.using(ALIAS).get().owner == "Ada"


def test_a_new_command_answers_it(operator: Client, parked: ParkedEvent) -> None:
    url = f"{PARKED}{parked.pk}/command/"
    assert operator.get(url).status_code in (302, 404)
    kinds = operator.get(url, {"database": ALIAS})
    assert f'<input type="hidden" name="database" value="{ALIAS}">' in kinds.content.decode()
    form = operator.get(url, {"database": ALIAS, "type": "bank.Deposit"})
    assert f"{PARKED}{parked.pk}/change/?database={ALIAS}" in form.content.decode()


def test_the_page_of_subscribers_leads_there(operator: Client) -> None:
    page = operator.get("/admin/enode_django/subscriber/").content.decode()
    assert f"{PARKED}?subscriber={SUBSCRIBER}&amp;database={ALIAS}" in page


def test_rebuilds_are_found_there_and_undone(operator: Client) -> None:
    made = Rebuild.objects.using(ALIAS).create(
        **{"subscriber": SUBSCRIBER, "generation": 1, "replaces": 0, "state": Rebuild.State.SWAPPED},
        **{"tables": [], "migrations": [], "positions": {}},
    )
    assert operator.get(REBUILDS).context["cl"].result_count == 0
    undo = f"{REBUILDS}{made.pk}/undo/?database={ALIAS}"
    assert undo in operator.get(REBUILDS, {"database": ALIAS}).content.decode()
    assert SUBSCRIBER in operator.get(undo).content.decode()


def test_its_links_stay_in_the_database_whose_keys_others_have_too(operator: Client, parked: ParkedEvent) -> None:
    page = operator.get(f"{PARKED}{parked.pk}/change/", {"database": ALIAS}).content.decode()
    (history,) = re.findall(rf'"({PARKED}{parked.pk}/history/[^"]*)"', page)
    assert f"database={ALIAS}" in history
    assert operator.get(html.unescape(history)).context["object"] == parked


def test_an_erased_event_is_deleted_where_it_was_seen_and_not_the_one_with_its_key(client: Client) -> None:
    logged_in(client, "view_generationcheck", "delete_generationcheck")
    fields = {"subscriber": SUBSCRIBER, "shard": 0, "generation": 1, "stored_version": 1, "handled_version": 2}
    for alias, id in (("default", "other"), (ALIAS, "a")):
        GenerationCheck.objects.using(alias).all().delete()
        GenerationCheck.objects.using(alias).create(pk=7, aggregate_root_id=id, taken_back=False, **fields)
    page = client.get(f"{ERASED}7/change/", {"database": ALIAS}).content.decode()
    (delete,) = re.findall(rf'"({ERASED}7/delete/[^"]*)"', page)
    client.post(html.unescape(delete), {"post": "yes"})
    assert not GenerationCheck.objects.using(ALIAS).exists()
    assert GenerationCheck.objects.using("default").get().aggregate_root_id == "other"


def test_the_history_of_a_row_has_nothing_of_the_one_with_its_key(operator: Client, parked: ParkedEvent) -> None:
    """Both databases count their rows from 1 on."""
    other = Done("skip", "enode_django.parkedevent", "b", details="of another aggregate", row=str(parked.pk))
    record("ann", OperatorAction.Source.ADMIN, other)
    page = operator.get(f"{PARKED}{parked.pk}/history/", {"database": ALIAS}).content.decode()
    assert "of another aggregate" not in page


@pytest.mark.parametrize("name", ["elsewhere", "reporting'--", "\0"])
def test_there_are_no_others(operator: Client, name: str) -> None:
    assert operator.get(PARKED, {"database": name}).status_code == 404
