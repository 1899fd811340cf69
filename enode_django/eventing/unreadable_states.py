"""Find running processes whose states this code cannot read, before their next events park the aggregates.

What is found goes into logs, so it names classes and fields only: the values of a state may be personal data, and the
texts of errors quote them.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from django.db import transaction

from enode_django.eventing import process_rows
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.processes import state_type_of
from enode_django.eventing.state_types import KEEPS_ITS_KIND, DataclassState, StateType, misfits
from enode_django.eventing.subscribers import key_of
from enode_django.exceptions import EnodeError, InvalidField

LOOKED_AT = 1_000
"""The most processes whose states are read, of one process manager: half of them the oldest, half the newest."""


class UnreadableStates(NamedTuple):
    """Running processes of one process manager whose states this code cannot read, for the same reason."""

    reason: str
    processes: int


def unreadable_states(manager: ProcessManager) -> list[UnreadableStates]:
    """Return what cannot be read among the states of up to `LOOKED_AT` running processes. Takes one query, in a
    transaction of its own. Raises the driver's errors, also if there is no table."""
    state_type = state_type_of(manager)
    with transaction.atomic(using=manager.database):
        states = process_rows.running(manager.database, key_of(manager), LOOKED_AT // 2)
    found = Counter(_reason(state_type, packed) for packed in states)
    return [UnreadableStates(reason, count) for reason, count in found.items() if reason]


def _reason(state_type: StateType, packed: bytes) -> str:
    """Return why a state cannot be read; an empty text if it can."""
    try:
        state_type.read(packed)
    except EnodeError as error:
        return _told(state_type, packed, error)
    return ""


def _told(state_type: StateType, packed: bytes, error: EnodeError) -> str:
    name = state_type.cls.__qualname__
    if not isinstance(state_type, DataclassState):
        return f"an event {name} cannot be made of them; see its upcasters, and that {KEEPS_ITS_KIND}"
    if not isinstance(error, InvalidField):
        return f"{name} is not what they were made of; {KEEPS_ITS_KIND}"
    if names := misfits(state_type, packed):
        return f"{', '.join(names)} of {name} had another type; keep it under this name, and give the new one another"
    return f"__post_init__ of {name} refuses them; let it accept what is stored"
