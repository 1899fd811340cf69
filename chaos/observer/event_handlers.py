"""A subscriber that logs every event that it handles, for the checker."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from chaos.journal import Journal
from enode_django import DomainEvent, event_handler
from enode_django.serialization.registry import types
from sample_project.bank import domain as bank
from sample_project.notes import domain as notes

NAME = "chaos.observer"

EVENTS = [
    value
    for module in (bank, notes)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, DomainEvent) and value is not DomainEvent
]


@lru_cache(maxsize=1)
def _journal(pid: int) -> Journal:
    return Journal(Path(os.environ["CHAOS_DIRECTORY"]) / "subscribers" / f"{NAME}-{pid}.jsonl")


@event_handler(*EVENTS, name=NAME, start="beginning")
def observe(event: DomainEvent) -> None:
    _journal(os.getpid()).note(
        subscriber=NAME,
        aggregate_root_id=event.aggregate_root_id,
        version=event.version,
        event_id=event.id,
        type=types.name_of(type(event)),
    )
