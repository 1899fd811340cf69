from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.domain.handlers import command_handlers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.testing import inline


@pytest.fixture
def inline_bus() -> Iterator[None]:
    with inline(MemoryEventStore()):
        yield


@pytest.fixture
def cleared() -> Iterator[None]:
    """Forget the handlers that the test marks."""
    known = {command: list(handlers) for command, handlers in command_handlers._handlers.items()}
    yield
    command_handlers._handlers.clear()
    command_handlers._handlers.update(known)
    command_handlers._found.clear()
    command_handlers.strays.clear()
