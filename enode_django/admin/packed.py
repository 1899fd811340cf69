"""Query conditions on the packed bytes of stored rows. No index serves them: every row is read."""

from __future__ import annotations

from typing import Any

from django.db.models import BinaryField, BooleanField, Case, F, Func, IntegerField, Q, Value, When
from django.db.models.lookups import LessThanOrEqual

from enode_django.serialization.codec import REFUSAL
from enode_django.serialization.plain import pack

SMALL = 64 * 1024
"""The largest events, in bytes, that a list reads or searches."""
ARRAY_OF_3, ARRAY_OF_4 = b"\x93", b"\x94"
"""The first byte of a packed event and of a packed refusal. The type name follows."""
IDS = ("correlation_id", "causation_id", "request")
"""The keys of metadata whose values are searched."""


class _Holds(Func):
    """True if ``whole`` contains the bytes of ``part``. msgpack writes a value right after its key, so both can be
    searched together."""

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
    """Return the events of a row, or NULL if they are larger than `SMALL` bytes. Their size is cheap to read."""
    size = Func("events", function="octet_length", output_field=IntegerField())
    return Case(When(LessThanOrEqual(size, SMALL), then="events"), output_field=BinaryField())


def has_type(name: str) -> Q:
    """Match rows with an event or a refusal of this type, unless their events are larger than `SMALL` bytes."""
    begins = (ARRAY_OF_3 + pack(name), REFUSAL + ARRAY_OF_4 + pack(name))
    event, refusal = (Q(_Holds(begin, small_events())) for begin in begins)
    return event | refusal
