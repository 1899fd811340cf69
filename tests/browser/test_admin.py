from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer


@pytest.mark.django_db(transaction=True)
def test_whoever_may_sees_the_app_in_the_admin(live_server: LiveServer, page: Page) -> None:
    User.objects.create_superuser("root", password="secret")
    page.goto(f"{live_server.url}/admin/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "secret")
    page.click("[type=submit]")
    page.get_by_role("link", name="Event streams").click()
    expect(page.get_by_role("heading", name="Select event stream to view")).to_be_visible()
