"""The group ``tellers`` and its permission."""

from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.apps.registry import Apps
from django.contrib.auth.models import Group, Permission
from django.db import router

SERVE = "bank.serve_customers"


def tellers(using: str = "default") -> Group:
    """Return the group; make it if it does not exist."""
    group, _ = Group.objects.using(using).get_or_create(name="tellers")
    app, codename = SERVE.split(".")
    group.permissions.add(Permission.objects.using(using).get(content_type__app_label=app, codename=codename))
    return group


def make_group(*, using: str, apps: Apps = installed, **_: Any) -> None:
    """Make the group after ``migrate`` has made the permission; ``apps`` are those whose tables exist."""
    made = {model._meta.app_label for model in apps.get_models()}
    if {"auth", "bank"} <= made and router.allow_migrate_model(using, Group):
        tellers(using)
