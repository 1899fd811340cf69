"""Clients of the admin for users who may do this and that."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import Client


def client_of(*permissions: str, checks: bool = False) -> Client:
    """Return a client of a staff user with these permissions of the app. ``checks``: posts need a CSRF token."""
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    granted = Permission.objects.filter(codename__in=permissions, content_type__app_label="enode_django")
    assert len(granted) == len({*permissions}), f"not all of {permissions} are there"
    user.user_permissions.set(granted)
    client = Client(enforce_csrf_checks=checks)
    client.force_login(user)
    return client
