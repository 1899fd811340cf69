from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.processors.event_workers import (
    DividedByHand,
    Worker,
    prepared,
    running,
)


@pytest.fixture
def transport() -> DividedByHand:
    return prepared(DividedByHand())


@pytest.fixture
def worker(transport: DividedByHand) -> Iterator[Worker]:
    with running(Worker(transport), 0, 1) as worker:
        yield worker
