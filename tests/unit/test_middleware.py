"""`EnodeMiddleware` in Django's own chain of middleware, under WSGI and ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from enode_django.domain.metadata import EMPTY, current_metadata


class Visitor:
    pk = 7
    is_authenticated = True


def view(request: HttpRequest) -> JsonResponse:
    if "login" in request.GET:
        request.user = Visitor()  # type: ignore[assignment]
    return JsonResponse(current_metadata().as_map())


async def async_view(request: HttpRequest) -> JsonResponse:
    return view(request)


urlpatterns = [path("sync", view), path("async", async_view)]


@pytest.fixture(autouse=True)
def chain() -> Iterator[None]:
    with override_settings(MIDDLEWARE=["enode_django.middleware.EnodeMiddleware"], ROOT_URLCONF=__name__):
        yield


def ask(url: str, asynchronous: bool, **headers: str) -> Any:
    if asynchronous:
        return asyncio.run(AsyncClient().get(url, headers=headers)).json()
    return Client().get(url, headers=headers).json()


pytestmark = [
    pytest.mark.parametrize("asynchronous", [False, True], ids=["wsgi", "asgi"]),
    pytest.mark.parametrize("url", ["/sync", "/async"]),
]


def test_a_request_names_its_user_at_the_time_of_sending_and_its_id(url: str, asynchronous: bool) -> None:
    seen = ask(f"{url}?login", asynchronous, **{"x-request-id": "r-1"})
    assert seen == {"user": "7", "request": "r-1", "correlation_id": "r-1"}


def test_a_request_without_an_id_gets_one_and_nobody_is_no_user(url: str, asynchronous: bool) -> None:
    one, other = ask(url, asynchronous), ask(url, asynchronous)
    assert "user" not in one
    assert one["request"] == one["correlation_id"] != other["request"]
    assert current_metadata() == EMPTY


def test_an_id_of_a_request_is_cut_where_ids_end(url: str, asynchronous: bool) -> None:
    assert ask(url, asynchronous, **{"x-request-id": "r" * 999})["request"] == "r" * 255
