"""A project may leave pages out of its admin site: the others do without links to them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import path

from tests.admin.test_permissions import ADMIN, _with_keys, stored

__all__ = ["stored"]

pytestmark = pytest.mark.django_db

PAGES = (
    *("processorreport/", "eventstream/", "eventstream/{stream}/change/", "eventstream/aggregates/a/", "subscriber/"),
    *("deadletter/", "deadletter/{letter}/change/", "outboxcommand/", "outboxcommand/{waiting}/change/"),
    *("scheduledcommand/", "scheduledcommand/{scheduled}/change/", "parkedevent/", "parkedevent/{parked}/change/"),
    *("uniquevalue/", "generationcheck/", "processstate/", "processstate/{process}/change/", "operatoraction/"),
    *("job/", "job/{failed}/change/", "rebuild/", "rebuild/{rebuild}/change/"),
    *("topic/", "topic/orders/change/", "topic/orders/messages/0/0/"),
)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("name", dict.fromkeys(page.partition("/")[0] for page in PAGES))
def test_pages_of_a_model_are_shown_by_a_site_that_has_no_others_of_ours(name: str) -> None:
    site = admin.AdminSite("admin")
    for model, its_admin in admin.site._registry.items():
        if model._meta.app_label != "enode_django" or model._meta.model_name == name:
            site.register(model, type(its_admin))
    urls: Any = ModuleType("urls_of_a_partial_site")
    urls.urlpatterns = [path("admin/", site.urls)]
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with override_settings(ROOT_URLCONF=urls):
        for page in PAGES:
            if page.startswith(f"{name}/"):
                assert client.get(ADMIN + _with_keys(page)).status_code == 200, page
