"""A project may cache its whole site: what the API answers to one user is then not answered to another one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from enode_django import execute_command
from enode_django.testing import inline
from sample_project.bank.domain import OpenAccount

pytestmark = pytest.mark.django_db(transaction=True)

BASIC = {"Authorization": f"Basic {b64encode(b'root:secret').decode()}"}


@pytest.fixture(autouse=True)
def cached_site(transactional_db: None, settings: Any) -> Iterator[None]:
    first, last = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"
    settings.MIDDLEWARE = [first, *settings.MIDDLEWARE, last]
    User.objects.create_superuser("root", password="secret")
    cache.clear()
    with inline():
        execute_command(OpenAccount("ada", owner="Ada", id="the-opening"))
        yield
    cache.clear()


@pytest.mark.parametrize(
    "path",
    ["aggregates/bank.BankAccount/ada/", "aggregates/bank.BankAccount/ada/events/", "events/", "commands/the-opening/"],
)
def test_what_a_user_may_see_is_not_shown_to_a_stranger(path: str) -> None:
    assert Client().get(f"/api/{path}", headers=BASIC).status_code == 200
    assert Client().get(f"/api/{path}").status_code in (401, 403)


def test_the_feed_goes_on_where_a_page_has_ended() -> None:
    end = Client().get("/api/events/", headers=BASIC).json()["cursor"]
    assert Client().get("/api/events/", {"cursor": end}, headers=BASIC).json()["results"] == []
    execute_command(OpenAccount("eve", owner="Eve"))
    (row,) = Client().get("/api/events/", {"cursor": end}, headers=BASIC).json()["results"]
    assert row["aggregate_root_id"] == "eve"


def test_answers_name_no_shared_cache_and_are_asked_for_anew() -> None:
    for path in ("aggregates/bank.BankAccount/ada/", "aggregates/bank.BankAccount/nobody/"):
        assert Client().get(f"/api/{path}", headers=BASIC)["Cache-Control"] == "no-cache, private"
    assert Client().get("/api/events/stream/", headers=BASIC)["Cache-Control"] == "no-store"
