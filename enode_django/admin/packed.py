"""Conditions on the packed bytes of a stored row, for filters that no index answers: every row is looked into."""

from __future__ import annotations

from typing import Any

from django.db.models import BinaryField, BooleanField, Case, F, Func, IntegerField, Q, Value, When
from django.db.models.lookups import LessThanOrEqual

from enode_django.serialization.codec import REFUSAL
from enode_django.serialization.plain import pack

SMALL = 64 * 1024
"""Bytes of events that a list takes from a row, or looks into."""
ARRAY_OF_3, ARRAY_OF_4 = b"\x93", b"\x94"
"""What an event and a refusal begin with; their type's name is the first in it."""
IDS = ("correlation_id", "causation_id", "request")
"""The keys of metadata whose values are looked for."""


class _Holds(Func):
    """Whether bytes hold others. msgpack writes a key right before its value, so both together are found as one."""

    template = "position(%(expressions)s) > 0"
    arg_joiner = " IN "
    output_field = BooleanField()

    def __init__(self, part: bytes, whole: Any) -> None:
        super().__init__(Value(part, BinaryField()), whole)


def metadata_names(id: str) -> Q:
    """Match rows whose metadata name this id as correlation, causation or request."""
    condition = Q()
    for key in IDS:
        condition |= Q(_Holds(pack(key) + pack(id), F("metadata")))
    return condition


def small_events() -> Case:
    """Return the events of a row, or None if they are larger than `SMALL` bytes: their size alone is cheap to ask."""
    size = Func("events", function="octet_length", output_field=IntegerField())
    return Case(When(LessThanOrEqual(size, SMALL), then="events"), output_field=BinaryField())


def has_type(name: str) -> Q:
    """Match rows with an event or a refusal of this type, unless their events are larger than `SMALL` bytes."""
    begins = (ARRAY_OF_3 + pack(name), REFUSAL + ARRAY_OF_4 + pack(name))
    event, refusal = (Q(_Holds(begin, small_events())) for begin in begins)
    return event | refusal
