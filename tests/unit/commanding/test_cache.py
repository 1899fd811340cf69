from __future__ import annotations

from enode_django.commanding.cache import LEAVE_TOGETHER, AggregateCache, Slot
from enode_django.commanding.decisions import STREAM, Decision, Envelope
from enode_django.domain.aggregate import AggregateRoot


class Thing(AggregateRoot):
    type_name = "cache.Thing"


def slot(name: str) -> Slot:
    return Slot(name, Thing(name), 1, 0)


def filled(count: int, limit: int) -> tuple[AggregateCache, list[str]]:
    """Return a cache after ``count`` aggregates were put into it, and the ids of those that left, in order."""
    left: list[str] = []
    cache = AggregateCache(limit, lambda slot: left.append(slot.id))
    for number in range(count):
        one = slot(f"thing-{number}")
        cache.put(one)
        cache.settle(one)
    return cache, left


def use(cache: AggregateCache, name: str) -> Slot:
    used = cache.slots[name]
    cache.pin(used, Decision(STREAM, name, 1, Envelope(f"command of {name}", name, "cache.Use", None), 0))
    return used


def test_the_least_recently_used_aggregate_leaves_first() -> None:
    cache, left = filled(3, limit=3)
    cache.settle(use(cache, "thing-0"))
    new = slot("thing-3")
    cache.put(new)
    cache.settle(new)
    assert (left, sorted(cache.slots)) == (["thing-1"], ["thing-0", "thing-2", "thing-3"])


def test_an_aggregate_with_an_unfinished_command_stays() -> None:
    cache, left = filled(2, limit=2)
    use(cache, "thing-0")
    new = slot("thing-2")
    cache.put(new)
    cache.settle(new)
    assert (left, sorted(cache.slots)) == (["thing-1"], ["thing-0", "thing-2"])


def test_several_of_many_aggregates_leave_at_a_time_in_the_order_of_their_last_use() -> None:
    limit = 3 * LEAVE_TOGETHER
    cache, left = filled(limit + 1, limit)
    assert left == ["thing-0", "thing-1", "thing-2", "thing-3"]
    assert len(cache) == limit - 3
