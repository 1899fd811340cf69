from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import Facts
from chaos.checker.replay.follow_ups import PROCESS_MANAGER


def checkpoints(facts: Facts) -> Iterator[str]:
    """Each subscriber is at the stored version of each aggregate that it follows, and none is parked."""
    heads = {id: rows[-1].version or 0 for id, rows in facts.histories.items()}
    for parked in facts.parked:
        place = f"{parked.aggregate_root_id} at version {parked.version}"
        yield f"{parked.subscriber} has parked {place}: {parked.error_type}"
    for (subscriber, id), version in facts.checkpoints.items():
        if version != heads.get(id, 0):
            yield f"{subscriber} stands at version {version} of {id}; stored is {heads.get(id, 0)}"
    for subscriber, id in _followed(facts):
        if (subscriber, id) not in facts.checkpoints:
            yield f"{subscriber} has no checkpoint of {id}; stored is version {heads[id]}"


def _followed(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the (subscriber, aggregate root id) pairs that must have a checkpoint. A projection with one row for each
    aggregate has one only if the row was deleted."""
    state = facts.replay
    for id in (*state.accounts, *state.transfers):
        yield PROCESS_MANAGER, id
    for id in state.accounts:
        yield "bank.Ledger", id
    for id, note in state.notes.items():
        if note.deleted:
            yield "notes.Notes", id
