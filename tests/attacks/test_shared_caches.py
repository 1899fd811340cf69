"""A project may cache its whole site: what the API answers to one user is then not answered to another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from rest_framework.authentication import BaseAuthentication

from enode_django import execute_command
from enode_django.api.base import ApiView
from enode_django.testing import inline
from sample_project.bank.domain import OpenAccount

pytestmark = pytest.mark.django_db(transaction=True)

KEY = {"X-Api-Key": "secret"}


class ByKey(BaseAuthentication):
    """By a header that no cache knows."""

    def authenticate(self, request: Any) -> tuple[User, None] | None:
        return (User.objects.get(), None) if request.headers.get("X-Api-Key") == KEY["X-Api-Key"] else None


@pytest.fixture(autouse=True)
def cached_site(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ApiView, "authentication_classes", [ByKey])
    first, last = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"
    settings.MIDDLEWARE = [first, *settings.MIDDLEWARE, last]
    User.objects.create_superuser("root")
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
    assert Client().get(f"/api/{path}", headers=KEY).status_code == 200
    assert Client().get(f"/api/{path}").status_code in (401, 403)


def test_the_feed_goes_on_where_a_page_has_ended() -> None:
    end = Client().get("/api/events/", headers=KEY).json()["cursor"]
    assert Client().get("/api/events/", {"cursor": end}, headers=KEY).json()["results"] == []
    execute_command(OpenAccount("eve", owner="Eve"))
    (row,) = Client().get("/api/events/", {"cursor": end}, headers=KEY).json()["results"]
    assert row["aggregate_root_id"] == "eve"


def test_answers_name_no_shared_cache_and_are_asked_for_anew() -> None:
    for path in ("aggregates/bank.BankAccount/ada/", "aggregates/bank.BankAccount/nobody/"):
        assert Client().get(f"/api/{path}", headers=KEY)["Cache-Control"] == "no-cache, private"
    assert Client().get("/api/events/stream/", headers=KEY)["Cache-Control"] == "no-store"
