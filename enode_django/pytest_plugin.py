"""Fixtures for the tests of an application. pytest finds them once the package is installed.

Every run of pytest in an environment with the package imports this module, also for other projects. So it imports
nothing else of the package before a fixture is used, and is not a part of `enode_django.testing`, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from enode_django.bus.results import CommandResult
    from enode_django.domain.messages import Command
    from enode_django.eventstore.memory import MemoryEventStore
    from enode_django.testing import InlineCommandBus

pytest.register_assert_rewrite("enode_django.testing")  # so that a contract suite shows which values differ


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "enode(followed_by): the subscribers that follow the commands of enode_bus")


_DATABASE = frozenset({"db", "transactional_db", "live_server"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a database. pytest-django makes a test database only for marked tests; a fixture that
    needs it without the mark would get the real one."""
    if config.pluginmanager.hasplugin("django"):
        for item in items:
            if _needs_database(item) and not _has_database(item) and not _keeps_in_memory():
                item.add_marker(pytest.mark.django_db)


def _needs_database(item: pytest.Item) -> bool:
    names = _fixtures(item)
    return "enode_bus" in names and ("enode_event_store" not in names or bool(_followed_by(item)))


def _has_database(item: pytest.Item) -> bool:
    return item.get_closest_marker("django_db") is not None or bool(_DATABASE & _fixtures(item))


def _fixtures(item: pytest.Item) -> frozenset[str]:
    return frozenset(getattr(item, "fixturenames", ()))


def _keeps_in_memory() -> bool:
    from enode_django.conf import keeps_in_memory

    return keeps_in_memory()


def _followed_by(item: pytest.Item) -> Any:
    marker = item.get_closest_marker("enode")
    if marker is None:
        return None
    if marker.args or marker.kwargs.keys() != {"followed_by"}:
        raise pytest.UsageError(f"{item.nodeid}: the mark takes one argument: @pytest.mark.enode(followed_by=[…])")
    return marker.kwargs["followed_by"]


@pytest.fixture
def enode_event_store() -> MemoryEventStore:
    """Return a store in memory. A test that uses it needs no database: ``enode_bus`` then stores here."""
    from enode_django.eventstore.memory import MemoryEventStore

    return MemoryEventStore()


@pytest.fixture
def enode_bus(request: pytest.FixtureRequest) -> Iterator[InlineCommandBus]:
    """Run the test inside `enode_django.testing.inline`: commands are executed at once, and subscribers follow them.

    Events are stored in the database that pytest-django makes; in ``enode_event_store`` if the test uses that fixture;
    and in memory if no database is configured. ``@pytest.mark.enode(followed_by=[…])`` names the subscribers.
    """
    from enode_django.testing import inline

    in_memory = "enode_event_store" in request.fixturenames
    followed_by = _followed_by(request.node)
    if (followed_by or not in_memory) and not _keeps_in_memory():
        if not _has_database(request.node):
            pytest.fail(
                "the fixture enode_bus needs a test database: "
                "install pytest-django, and name the fixture as a parameter"
            )
        request.getfixturevalue("db")  # another fixture may ask for it, but later
    store = request.getfixturevalue("enode_event_store") if in_memory else None
    with inline(store, followed_by=followed_by) as bus:
        yield bus


@pytest.fixture
def enode_execute(enode_bus: InlineCommandBus) -> Callable[[Command], CommandResult]:
    """Return `execute_command`, which uses the fixture ``enode_bus``."""
    from enode_django.client import execute_command

    return execute_command


@pytest.fixture
def enode_given() -> Callable[..., object]:
    """Return `enode_django.testing.given`."""
    from enode_django.testing import given

    return given
