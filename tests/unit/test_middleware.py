"""`EnodeMiddleware` in Django's own chain of middleware, under WSGI and ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from enode_django import Metadata, current_metadata
from enode_django.domain.metadata import EMPTY
from enode_django.middleware import EnodeMiddleware


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


class TenantMiddleware(EnodeMiddleware):
    def get_metadata(self, request: HttpRequest) -> Metadata:
        tenant = request.GET.get("tenant", "")
        given = "given" in request.GET
        found = replace(super().get_metadata(request), extra={"tenant": tenant})
        return replace(found, request="q", correlation_id="c") if given else found


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


def test_a_subclass_says_what_the_metadata_are(url: str, asynchronous: bool) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.TenantMiddleware"]):
        seen = ask(f"{url}?login&tenant=north", asynchronous, **{"x-request-id": "r-1"})
        assert seen == {"user": "7", "tenant": "north", "request": "r-1", "correlation_id": "r-1"}
        seen = ask(f"{url}?tenant=north&given", asynchronous)
        assert seen == {"tenant": "north", "request": "q", "correlation_id": "c"}
