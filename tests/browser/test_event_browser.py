from __future__ import annotations

import re
from decimal import Decimal

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from enode_django import execute_command
from enode_django.admin import links
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount

pytestmark = pytest.mark.django_db(transaction=True)
POLICY = "default-src 'self'; script-src 'self'; style-src 'self'"


@pytest.fixture
def account(live_server: LiveServer, page: Page) -> str:
    """The address of the page of an account with three versions, for a user who is logged in."""
    with inline():
        execute_command(OpenAccount("ada", owner="<b>Ada</b>"))
        for amount in (10, 20):
            execute_command(Deposit("ada", amount=Decimal(amount)))
    user = User.objects.create_user("auditor", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_eventstream", "view_payload")))
    client = Client()
    client.force_login(user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
    return live_server.url + links.aggregate_url("ada")


def test_the_slider_moves_the_state(account: str, page: Page) -> None:
    """The policy allows no inline scripts or styles."""
    page.route(
        account,
        lambda route: route.fulfill(
            response=(answer := route.fetch()), headers={**answer.headers, "content-security-policy": POLICY}
        ),
    )
    page.goto(account)
    state = page.locator("#enode-state")
    expect(state).to_contain_text("30")
    expect(page.locator("#enode-trouble")).to_be_hidden()
    slider = page.get_by_role("slider", name="Version")
    slider.press("ArrowLeft")
    expect(state).to_contain_text("10")
    expect(page.locator("#enode-version")).to_have_text("2")
    slider.press("Home")
    expect(state).not_to_contain_text("10")
    expect(state).to_contain_text("<b>Ada</b>")
    page.get_by_role("button", name="Show this version").click()
    expect(page).to_have_url(re.compile(r"version=1#state$"))
    expect(page.get_by_role("heading", name="Difference from version 0 to 1")).to_be_visible()


def test_difference_causation_and_address_follow_the_slider_to_where_it_rests(account: str, page: Page) -> None:
    page.goto(account)
    page.get_by_role("slider", name="Version").press("Home")
    expect(page.get_by_role("heading", name="Difference from version 0 to 1")).to_be_visible()
    expect(page.get_by_role("heading", name="Causation of version 1")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?version=1#state$"))
    expect(page.get_by_role("slider", name="Version")).to_be_focused()
    page.reload()
    expect(page.locator("#enode-version")).to_have_text("1")


def test_the_causation_fits_and_its_steps_have_names_times_and_arrowheads(account: str, page: Page) -> None:
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(account)
        picture = page.locator(".enode-causation")
        box = picture.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    assert picture.locator(".enode-arrow").first.get_attribute("marker-end") == "url(#enode-head)"
    expect(picture.get_by_role("link", name="bank.Deposit, ada v3")).to_be_visible()
    page.get_by_text("As a list, with the times").click()
    expect(page.locator(".enode-steps time").first).to_have_text(
        re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d")
    )
    expect(page.get_by_text("Cut:")).to_have_count(0)


def test_the_pages_are_dark_where_the_reader_wants_it(account: str, page: Page) -> None:
    def lightness(selector: str, what: str) -> int:
        colour = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{what}")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        page.goto(account)
        assert (lightness("body", "backgroundColor") < 200) is is_dark
        assert (lightness(".enode-causation rect", "fill") < 200) is is_dark
        assert (lightness(".enode-causation text", "fill") > 500) is is_dark
