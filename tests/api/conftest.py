"""Imports stand where they are needed: this is read before Django is set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from enode_django.testing.inline import InlineCommandBus
    from tests.api.calls import Caller

MakeCaller = Callable[..., "Caller"]


@pytest.fixture(autouse=True)
def nobody_was_throttled() -> None:
    from django.core.cache import cache

    cache.clear()


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> MakeCaller:
    """Somebody who has logged in and has these of our permissions."""
    from django.contrib.auth.models import Permission, User
    from django.contrib.contenttypes.models import ContentType
    from django.test import Client

    from enode_django.models import EventStream
    from tests.api.calls import Caller

    def make(*permissions: str, name: str = "clerk") -> Caller:
        user, _ = User.objects.get_or_create(username=name)
        streams = ContentType.objects.get_for_model(EventStream)
        Permission.objects.get_or_create(codename="view_payload", defaults={"content_type": streams})
        user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return Caller(client, user)

    return make


@pytest.fixture
def sender(db: None, caller: MakeCaller) -> Any:
    return caller("send_command")


@pytest.fixture
def bus(db: None) -> Iterator[InlineCommandBus]:
    from enode_django.testing import inline

    with inline() as bus:
        yield bus
