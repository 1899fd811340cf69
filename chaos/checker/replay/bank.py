"""All aggregates, replayed from their stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from chaos.checker.decoding import Event, Refusal, Stream
from chaos.checker.replay import accounts, notes, transfers
from chaos.checker.replay.accounts import Account
from chaos.checker.replay.follow_ups import FollowUp, event_id, follow_ups, refusal_id
from chaos.checker.replay.notes import Note
from chaos.checker.replay.rows import Row
from chaos.checker.replay.transfers import Transfer

WrongEvent = (LookupError, TypeError, ValueError, ArithmeticError)


class Aggregate(Protocol):
    def apply(self, version: int, at: int, event: Event) -> None: ...


@dataclass
class Replay:
    """The replayed aggregates by id, each with its own problems. ``problems`` are sentences about rows that cannot be
    replayed. ``events`` holds the versions of each aggregate, with their numbers of events."""

    accounts: dict[str, Account] = field(default_factory=dict)
    transfers: dict[str, Transfer] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    follow_ups: dict[tuple[str, str], FollowUp] = field(default_factory=dict)
    events: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


Make: TypeAlias = Callable[[Replay, str], Aggregate]


def _account(state: Replay, id: str) -> Aggregate:
    return state.accounts.setdefault(id, Account(id))


def _transfer(state: Replay, id: str) -> Aggregate:
    return state.transfers.setdefault(id, Transfer(id))


def _note(state: Replay, id: str) -> Aggregate:
    return state.notes.setdefault(id, Note(id))


_MAKERS: Mapping[str, Make] = {accounts.TYPE: _account, transfers.TYPE: _transfer, notes.TYPE: _note}


def replay(histories: Mapping[str, Sequence[Row]], refusals: Iterable[Row]) -> Replay:
    """Replay the rows. ``histories`` are those of each aggregate, sorted by version."""
    state = Replay()
    for id, rows in histories.items():
        _replay_aggregate(state, id, rows)
    for row in refusals:
        refusal = row.contents
        if isinstance(refusal, Refusal):
            id = row.aggregate_root_id
            _demand(state, follow_ups(refusal_id(id, row.command_id), id, refusal.type_name, refusal.fields))
    return state


def _replay_aggregate(state: Replay, id: str, rows: Sequence[Row]) -> None:
    make = _MAKERS.get(rows[0].aggregate_root_type)
    if make is None:
        state.problems.append(f"aggregate {id} is of the unknown type {rows[0].aggregate_root_type!r}")
        return
    aggregate = make(state, id)
    state.events[id] = counts = []
    for row in rows:
        contents, version = row.contents, row.version or 0
        if not isinstance(contents, Stream):
            state.problems.append(f"version {version} of {id} is stored as a refusal")
            continue
        counts.append((version, len(contents.events)))
        for index, event in enumerate(contents.events):
            try:
                aggregate.apply(version, row.created_at, event)
                _demand(state, follow_ups(event_id(id, version, index), id, event.type_name, event.fields))
            except WrongEvent as error:
                state.problems.append(f"version {version} of {id}: {event} cannot be replayed ({error!r})")


def _demand(state: Replay, demanded: Iterator[FollowUp]) -> None:
    for follow_up in demanded:
        state.follow_ups[follow_up.key] = follow_up
