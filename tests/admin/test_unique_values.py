"""The list of unique values."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from enode_django.models import UniqueValue


def make(holder: str, **fields: object) -> UniqueValue:
    given = {"claims": {}, "releases": [], "version": 1, "revision": 0, "changed_at": timezone.now()}
    name = {"name": "members.Member:nickname"}
    return UniqueValue.objects.create(digest=holder.encode(), aggregate_root_id=holder, **name | given | fields)


def test_the_list_offers_every_name(admin_client: Client, db: None) -> None:
    names = ["members.Member:email", "members.Member:nickname", "é:'1"]
    for number, name in enumerate(names * 2):
        make(f"m{number}", name=name)
    page = admin_client.get("/admin/enode_django/uniquevalue/", {"name": names[0]})
    (offered,) = [filter for filter in page.context["cl"].filter_specs if filter.title == "name"]
    assert [choice["display"] for choice in offered.choices(page.context["cl"])] == ["All", *names]
    assert page.context["cl"].result_count == 2


def test_rows_say_who_holds_a_value_and_link_the_aggregate(admin_client: Client, db: None) -> None:
    make("held-1")
    claimed = make("claimed-1", claims={"c": "members.Join"}, version=0)
    make("leaving-1", releases=[2])
    page = admin_client.get("/admin/enode_django/uniquevalue/").content.decode()
    assert page.count("members.Member:nickname") >= 3
    for text in ("claimed by a command under way", "held, may be given up"):
        assert text in page
    detail = admin_client.get(f"/admin/enode_django/uniquevalue/{claimed.pk}/change/").content.decode()
    assert "members.Join" in detail
    assert "/admin/enode_django/eventstream/aggregates/claimed-1/" in detail


@pytest.mark.parametrize("page", ["add/", "1/delete/"])
def test_nobody_changes_them(admin_client: Client, db: None, page: str) -> None:
    make("held-1", id=1)
    assert admin_client.get(f"/admin/enode_django/uniquevalue/{page}").status_code == 403


@pytest.mark.parametrize("page", ["1", "2", "x", "-1"])
def test_any_page_of_a_history_may_be_asked_for(admin_client: Client, db: None, page: str) -> None:
    make("held-1", id=1)
    assert admin_client.get(f"/admin/enode_django/uniquevalue/1/history/?p={page}").status_code == 200


@pytest.mark.parametrize("model", ["uniquevalue", "processstate"])
def test_a_long_list_is_read_by_an_index(admin_client: Client, db: None, model: str) -> None:
    with CaptureQueriesContext(connection) as asked:
        admin_client.get(f"/admin/enode_django/{model}/")
    queries = [one["sql"] for one in asked if f"enode_django_{model}" in one["sql"] and "ORDER BY" in one["sql"]]
    assert len(queries) == 2, "the rows, and the values of the filter"
    for query in queries:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN SELECT * FROM ({query}) AS asked LIMIT 100")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert re.search("Index (Only )?Scan", plan)
        assert not re.search("Sort|Unique|Aggregate", plan)
