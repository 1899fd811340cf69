from __future__ import annotations

from enode_django.equeue.broker.batches import StoredBatch
from enode_django.equeue.broker.ring import Ring


def stored(size: int) -> StoredBatch:
    return StoredBatch(0, bytes(size))


def test_the_newest_are_found_by_position_and_the_oldest_make_room() -> None:
    ring = Ring(2, 1000)
    for position in (0, 80, 160):
        ring.add(position, stored(10))
    assert ring.get(0) is None
    assert ring.get(80) is not None
    assert ring.get(160) is not None
    assert ring.get(81) is None
    assert (len(ring), ring.held_bytes) == (2, 20)


def test_bytes_are_bounded_too() -> None:
    ring = Ring(100, 50)
    for position in range(10):
        ring.add(position, stored(20))
    assert (len(ring), ring.held_bytes) == (2, 40)
    ring.add(10, stored(51))
    assert ring.get(10) is None
    assert (len(ring), ring.held_bytes) == (2, 40)


def test_a_ring_of_no_batches_holds_none() -> None:
    ring = Ring(0, 50)
    ring.add(0, stored(1))
    assert ring.get(0) is None
