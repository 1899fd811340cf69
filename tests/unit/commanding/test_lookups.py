from __future__ import annotations

import pytest

from enode_django.concurrency.lookups import Lookups
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository import loading
from enode_django.repository.loading import AggregateLoader
from tests.races.counting import AddText, Create
from tests.races.harness import Worker

STREAMS = 100


def test_what_is_asked_for_follows_from_what_has_come() -> None:
    lookups = Lookups(first=32, most=500, most_bytes=1_000)
    counts = []
    for found in (0, 0, 0, 32_000, 0):
        counts.append(lookups.count)
        lookups.found(lookups.count, found)
    assert counts == [32, 128, 500, 500, 15]
    assert Lookups(first=32, most=3, most_bytes=1).count == 3


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> AggregateLoader:
    """Return the loader of a store with one history of small streams and one of large ones."""
    monkeypatch.setattr(loading, "PORTION_BYTES", 400_000)
    monkeypatch.setattr(loading, "FIRST_PORTION", 8)
    store = MemoryEventStore()
    for id, size in (("small", 1), ("large", 10_000)):
        worker = Worker(store, max_bytes=2 * size + 1_000)
        texts = [AddText(id, text="x" * size) for _ in range(STREAMS - 1)]
        worker.send(Create(id), *texts)
        worker.settle()
    return AggregateLoader(store)


def test_histories_of_large_streams_come_bit_by_bit(loader: AggregateLoader) -> None:
    assert loader.sorted_by_size(["large"]) == ([], ["large"])
    assert loader.sorted_by_size(["large"]) == ([], ["large"])
    aggregate = loader.load("large")
    assert aggregate is not None
    assert aggregate.version == STREAMS


def test_histories_of_small_streams_come_at_once_when_that_is_known(loader: AggregateLoader) -> None:
    assert loader.sorted_by_size(["small"]) == ([], ["small"])  # at most four times the estimated number
    (portion,), large = loader.sorted_by_size(["small"])
    assert (portion.ids, large) == (["small"], [])
    assert loader.histories_of(portion)["small"].rebuild() is not None
    loader.histories_of(portion._replace(ids=["large"]))
    assert loader.sorted_by_size(["large"]) == ([], ["large"])
