"""Conditions on the packed bytes of a stored row, for filters that no index answers: every row is looked into."""

from __future__ import annotations

from typing import Any

from django.db.models import BinaryField, BooleanField, F, Func, Q, Value

from enode_django.serialization.plain import pack

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
