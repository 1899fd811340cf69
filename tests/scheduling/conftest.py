from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # at runtime, models cannot be imported before Django is set up
    from tests.outbox.harness import Harness


@pytest.fixture
def harness(transactional_db: None) -> Iterator[Harness]:
    from enode_django.runtime import use_bus
    from tests.outbox.harness import Harness

    harness = Harness()
    with use_bus(harness.bus):
        yield harness
