"""The pages of the conference: they fit a phone, work without JavaScript, and axe finds nothing."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from enode_django import execute_command
from enode_django.testing import inline
from sample_project.conference.domain import OpenConference, PlaceOrder, RegisterCustomer

pytestmark = pytest.mark.django_db(transaction=True)

TITLE = "The yearly meeting of those who write long titles for their conferences"
PAGES = [
    *("", "open/", "customers/", "customers/register/", "customers/customer-ada/", "customers/customer-ada/order/"),
    *("orders/order-1/", "orders/order-1/pay/", "orders/order-on-its-way/"),
]


def test_the_pages_fit_a_phone_and_axe_finds_nothing(live_server: LiveServer, page: Page) -> None:
    with inline():
        execute_command(OpenConference("conference-py", title=TITLE, seats=300, price=100))
        execute_command(RegisterCustomer("customer-ada", name="Ada Lovelace", email="ada@example.org"))
        execute_command(PlaceOrder("order-1", customer="customer-ada", conference="conference-py", seats=200))
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    page.set_viewport_size({"width": 390, "height": 844})
    found: dict[str, Any] = {}
    for path in PAGES:
        answer = page.goto(f"{live_server.url}/conference/{path}")
        assert answer is not None
        assert answer.status == 200, path
        if wider := page.evaluate("document.documentElement.scrollWidth - innerWidth"):
            found[f"{path}: wider than the screen"] = wider
        if violations := Axe().run(page).response["violations"]:
            found[f"{path}: axe"] = [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in violations]
    assert found == {}
