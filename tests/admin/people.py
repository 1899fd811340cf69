from __future__ import annotations

import re

from django.contrib.auth.models import Permission, User
from django.test import Client

HOSTILE = "<script>alert(1)</script>"


def logged_in(client: Client, *codenames: str) -> Client:
    """Log in as a user with these permissions of the app and no others."""
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="enode_django"))
    client.force_login(user)
    return client


def without_times(page: str) -> str:
    """Return a page without its times: 20:51:42.501938 contains 2.50, an amount."""
    return re.sub(r"\d\d:\d\d:\d\d\.\d+", "", page)
