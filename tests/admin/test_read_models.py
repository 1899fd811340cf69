"""`ReadModelAdmin`: rows of projections, to be looked at."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin import AdminSite, site
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory

from enode_django import execute_command
from enode_django.admin import ReadModelAdmin, showing
from enode_django.admin.links import aggregate_url
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.bank.models import AccountSummary, LedgerEntry
from sample_project.conference.models import Availability
from tests.admin.people import HOSTILE

LIST = "/admin/bank/accountsummary/"
ID = "a/b<1>"


@pytest.fixture(autouse=True)
def accounts(db: None) -> None:
    with inline(followed_by=["bank.AccountSummaries", "bank.Ledger", "bank.Payees"]):
        execute_command(OpenAccount(ID, owner=HOSTILE))
        execute_command(Deposit(ID, amount=Decimal("2.50")))
        execute_command(OpenAccount("b", owner="Bob"))


def logged_in(client: Client, *codenames: str) -> Client:
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    return client


@pytest.fixture
def clerk(client: Client) -> Client:
    """May see read models, and nothing of event streams."""
    return logged_in(client, "view_accountsummary", "view_ledgerentry")


@pytest.fixture
def auditor(client: Client) -> Client:
    return logged_in(client, "view_accountsummary", "view_ledgerentry", "view_eventstream")


@pytest.fixture
def plain() -> AdminSite:
    """Another site than Django's own, without our pages."""
    return AdminSite("plain")


def test_each_row_leads_to_the_events_of_its_aggregate(auditor: Client) -> None:
    for address in (LIST, "/admin/bank/ledgerentry/"):
        text = auditor.get(address).content.decode()
        assert f'<a href="{aggregate_url(ID)}">events</a>' in text
        assert HOSTILE not in text
    assert auditor.get(aggregate_url(ID)).status_code == 200


def test_the_page_of_a_row_shows_its_fields_and_leads_to_the_events(auditor: Client) -> None:
    row = LedgerEntry.objects.get()
    page = auditor.get(f"/admin/bank/ledgerentry/{row.pk}/change/").content.decode()
    assert aggregate_url(ID) in page
    answer = auditor.get(f"/admin/bank/ledgerentry/{row.pk}/history/")
    assert (answer.status_code, answer["Location"]) == (302, aggregate_url(ID))
    page = auditor.get(f"{LIST}{quote(ID)}/change/").content.decode()
    assert "Version" in page, "a field that no form has"


def test_who_may_not_view_event_streams_gets_no_link(clerk: Client) -> None:
    row = LedgerEntry.objects.get()
    pages = (LIST, "/admin/bank/ledgerentry/", f"/admin/bank/ledgerentry/{row.pk}/change/")
    for address in pages:
        answer = clerk.get(address)
        assert answer.status_code == 200
        assert "eventstream" not in answer.content.decode()
    assert clerk.get(f"/admin/bank/ledgerentry/{row.pk}/history/").status_code == 200


def test_nobody_changes_a_read_model(admin_client: Client) -> None:
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.get(f"{LIST}b/delete/").status_code == 403
    assert admin_client.post(f"{LIST}b/change/", {"owner": "Mallory"}).status_code == 403
    assert AccountSummary.objects.get(pk="b").owner == "Bob"


def test_an_aggregate_is_found_by_its_id(auditor: Client) -> None:
    found = auditor.get("/admin/bank/ledgerentry/", {"q": ID}).context["cl"].result_list
    assert [entry.account for entry in found] == [ID]
    assert auditor.get(LIST, {"closed__exact": "0"}).status_code == 200


@pytest.mark.parametrize(
    ("page", "status"),
    [("?owner=%00", 400), ("?owner__in=a,%00", 400), ("%00/change/", 302), ("%00/history/", 302), ("?owner=Bob", 200)],
)
def test_a_text_that_no_row_can_have_is_answered(clerk: Client, page: str, status: int) -> None:
    assert clerk.get(LIST + page).status_code == status


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("lookup", ["owner__regex=(", "owner__iregex=[", "balance__gt=1e200000"])
def test_a_lookup_that_the_database_refuses_is_told_as_incorrect(clerk: Client, lookup: str) -> None:
    answer = clerk.get(f"{LIST}?{lookup}")
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}?e=1")


def test_without_declarations_all_fields_are_listed_and_the_id_is_searched(
    rf: RequestFactory, plain: AdminSite, admin_user: User
) -> None:
    request = rf.get("/")
    request.user = admin_user
    names = ["aggregate_root_id", "version", "owner", "balance", "available", "opened_at", "closed"]
    assert ReadModelAdmin(AccountSummary, site).get_list_display(request) == [*names, "aggregate_link"]
    assert ReadModelAdmin(AccountSummary, site).get_search_fields(request) == ["aggregate_root_id__exact"]
    assert ReadModelAdmin(AccountSummary, plain).get_list_display(request) == names, "the site has no event streams"


def test_a_long_table_is_estimated_and_not_counted(auditor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "ESTIMATED_FROM", 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE bank_accountsummary")
    AccountSummary.objects.filter(pk="b").delete()
    assert auditor.get(LIST).context["cl"].result_count == 2
    assert auditor.get(LIST, {"q": ID}).context["cl"].result_count == 1, "who searches gets a number that was counted"
    some, others = (AccountSummary.objects.filter(pk=id).order_by() for id in (ID, "b"))
    assert showing.Estimated(some.union(others), 10).count == 1
    monkeypatch.setattr(showing, "ESTIMATED_FROM", 2)
    assert auditor.get(LIST).context["cl"].result_count == 1


def test_every_row_is_reached_though_the_estimate_is_too_low(auditor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "ESTIMATED_FROM", 1)
    monkeypatch.setattr(ReadModelAdmin, "list_per_page", 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE bank_accountsummary")
    AccountSummary.objects.create(aggregate_root_id="z", owner="Zoe", opened_at=datetime.now(UTC))
    assert auditor.get(LIST).context["cl"].result_count == 2
    last = auditor.get(LIST, {"p": 2})
    assert "p=3" in last.content.decode()
    assert len(auditor.get(LIST, {"p": 3}).context["cl"].result_list) == 1
    AccountSummary.objects.exclude(pk="z").delete()
    assert [row.pk for row in auditor.get(LIST, {"p": 2}).context["cl"].result_list] == ["z"], "the last there is"


# -- rows that belong to no single aggregate -----------------------------------------------------------------------


class DaysAdmin(ReadModelAdmin):
    aggregate_field = None


def test_rows_of_no_single_aggregate_are_shown_without_links(rf: RequestFactory, admin_user: User) -> None:
    Availability.objects.create(conference="c", title="Python", seats=5)
    days, request = DaysAdmin(Availability, site), rf.get("/")
    request.user = admin_user
    assert days.check() == []
    assert "aggregate_link" not in [*days.get_list_display(request), *days.get_fields(request)]
    assert days.get_search_fields(request) == []
    page = days.changelist_view(request)
    assert isinstance(page, TemplateResponse)
    assert "Python" in page.render().content.decode()


def test_a_field_of_the_aggregate_that_the_rows_do_not_have_is_found() -> None:
    (found,) = ReadModelAdmin(Availability, site).check()
    assert found.id == "enode_django.W174"
    assert "conference.Availability have no attribute 'aggregate_root_id'" in found.msg


def test_a_field_of_the_aggregate_may_be_annotated() -> None:
    class Annotated(ReadModelAdmin):
        aggregate_field = "of"

        def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
            return super().get_queryset(request).annotate(of=F("conference"))

    assert Annotated(Availability, site).check() == []


def test_the_page_of_a_row_shows_its_many_to_many_fields(rf: RequestFactory, admin_user: User) -> None:
    request = rf.get("/")
    request.user = admin_user

    class Groups(ReadModelAdmin):
        aggregate_field = "username"

    assert {"groups", "user_permissions", "aggregate_link"} <= set(Groups(User, site).get_fields(request))
