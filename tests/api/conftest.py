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
    from tests.api.calls import logged_in

    return logged_in


@pytest.fixture
def sender(db: None, caller: MakeCaller) -> Any:
    return caller("send_command")


@pytest.fixture
def bus(db: None) -> Iterator[InlineCommandBus]:
    from enode_django.testing import inline

    with inline(followed_by=["bank.AccountSummaries"]) as bus:
        yield bus
