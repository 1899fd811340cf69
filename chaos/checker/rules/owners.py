from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import Acquired, Committed, Consumption, Facts, OffsetSet


def one_owner(facts: Facts) -> Iterator[str]:
    """A queue has one owner per epoch; epochs only rise; and nobody commits in a past epoch."""
    owners: dict[tuple[Consumption, int], str] = {}
    yield from _in_log(facts, owners)
    yield from _in_samples(facts, owners)


def _in_log(facts: Facts, owners: dict[tuple[Consumption, int], str]) -> Iterator[str]:
    epochs: dict[Consumption, int] = {}
    for record in facts.log:
        if isinstance(record, Acquired):
            before = epochs.get(record.consumption, 0)
            if record.epoch <= before:
                got = f"{record.owner} got {_named(record.consumption)}"
                yield f"{record.place}: {got} in epoch {record.epoch} after {before}"
            epochs[record.consumption] = record.epoch
            yield from _owner(owners, record.consumption, record.epoch, record.owner, record.place)
        elif isinstance(record, Committed):
            epoch = epochs.get(record.consumption, record.epoch)
            if record.epoch != epoch:
                commit = f"a commit of {_named(record.consumption)}"
                yield f"{record.place}: {commit} is of epoch {record.epoch}, not {epoch}"
        elif isinstance(record, OffsetSet):
            epochs.pop(record.consumption, None)


def _in_samples(facts: Facts, owners: dict[tuple[Consumption, int], str]) -> Iterator[str]:
    epochs: dict[Consumption, int] = {}
    for sample in facts.samples:
        if not sample.epoch:  # nobody owns it: the broker has just started
            continue
        place = f"sample at {sample.at:.3f}"
        before = epochs.get(sample.consumption, 0)
        if sample.epoch < before:
            yield f"{place}: {_named(sample.consumption)} is in epoch {sample.epoch} after {before}"
        epochs[sample.consumption] = sample.epoch
        if sample.owner:
            yield from _owner(owners, sample.consumption, sample.epoch, sample.owner, place)


def _owner(
    owners: dict[tuple[Consumption, int], str], consumption: Consumption, epoch: int, owner: str, place: str
) -> Iterator[str]:
    known = owners.setdefault((consumption, epoch), owner)
    if known != owner:
        yield f"{place}: {_named(consumption)} has two owners in epoch {epoch}: {known} and {owner}"


def _named(consumption: Consumption) -> str:
    group, topic, queue = consumption
    return f"queue {queue} of {topic} for {group}"
