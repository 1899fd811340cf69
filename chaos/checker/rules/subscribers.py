from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from chaos.checker.facts import Facts, Handled
from chaos.checker.replay.follow_ups import event_id


def subscriber_order(facts: Facts) -> Iterator[str]:
    """Each observing subscriber handles every stored event, and none before its predecessor in the aggregate."""
    handled: defaultdict[tuple[str, str], list[Handled]] = defaultdict(list)
    for line in facts.handled:
        handled[line.subscriber, line.aggregate_root_id].append(line)
    for subscriber in facts.subscribers:
        for id, counts in facts.replay.events.items():
            yield from _of_aggregate(subscriber, id, counts, handled.pop((subscriber, id), []))
    for (subscriber, id), lines in handled.items():
        yield f"{subscriber} has handled {len(lines)} events of {id}, which is not stored or not for it"


def _of_aggregate(
    subscriber: str, id: str, counts: Sequence[tuple[int, int]], lines: Sequence[Handled]
) -> Iterator[str]:
    """Check one aggregate. ``counts`` are its versions with their numbers of events."""
    places = _places(id, counts)
    reached = 0
    for line in sorted(lines, key=lambda line: line.at):
        place = places.get(line.event_id)
        if place is None:
            yield f"{subscriber} has handled {line.event_id}, which is not stored"
        elif place > reached:
            yield f"{subscriber} has handled {line.event_id} when it had handled only {reached} events of {id}"
        reached = max(reached, place + 1 if place is not None else 0)
    missing = set(places) - {line.event_id for line in lines}
    if missing:
        first = min(missing, key=places.__getitem__)
        yield f"{subscriber} has not handled {len(missing)} events of {id}, the first is {first}"


def _places(id: str, counts: Sequence[tuple[int, int]]) -> Mapping[str, int]:
    """Return the place of each event among those of its aggregate, by its id."""
    ids = (event_id(id, version, index) for version, count in counts for index in range(count))
    return {id: place for place, id in enumerate(ids)}
