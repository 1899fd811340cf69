"""Fixtures for the tests of an application. pytest finds them by itself once the package is installed.

It is imported by every run of pytest in an environment that has the package, of other projects too: so it imports
nothing of it before a fixture is asked for, and is no part of `enode_django.testing`, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from enode_django.commanding.results import CommandResult
    from enode_django.domain.messages import Command
    from enode_django.eventstore.memory import MemoryEventStore
    from enode_django.testing import InlineCommandBus

pytest.register_assert_rewrite("enode_django.testing")  # so that a contract suite says what was not equal


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "enode(followed_by): the subscribers that follow the fixture enode's commands")


@pytest.fixture
def event_store() -> MemoryEventStore:
    """In memory. A test that asks for it needs no database: the fixture ``enode`` then stores here."""
    from enode_django.eventstore.memory import MemoryEventStore

    return MemoryEventStore()


@pytest.fixture
def enode(request: pytest.FixtureRequest) -> Iterator[InlineCommandBus]:
    """`enode_django.testing.inline` around the test: commands are executed at once, and subscribers follow them.

    In the test's database (the fixture ``db`` of pytest-django), or in ``event_store`` if the test asks for that.
    ``@pytest.mark.enode(followed_by=[…])`` names the subscribers.
    """
    from enode_django.testing import inline

    marker = request.node.get_closest_marker("enode")
    followed_by = marker.kwargs["followed_by"] if marker is not None else None
    store = request.getfixturevalue("event_store") if "event_store" in request.fixturenames else None
    if store is None or followed_by:
        request.getfixturevalue("db")
    with inline(store, followed_by=followed_by) as bus:
        yield bus


@pytest.fixture
def execute(enode: InlineCommandBus) -> Callable[[Command], CommandResult]:
    """`execute_command` for a test that goes on only if the command did not fail: else it raises `CommandFailed`."""
    from enode_django.client import execute_command

    return lambda command: execute_command(command).raise_for_status()


@pytest.fixture
def scenario() -> Callable[..., object]:
    """`enode_django.testing.given`."""
    from enode_django.testing import given

    return given
