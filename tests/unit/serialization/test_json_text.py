"""Stored rows as JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from enode_django.exceptions import MalformedMessage
from enode_django.serialization.codec import REFUSAL, STREAM
from enode_django.serialization.json_text import described, event_types, json_text, json_value
from enode_django.serialization.plain import pack

VALUE = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([None, True, 1, 2**80, 1.5, "ä"], [None, True, 1, 2**80, 1.5, "ä"]),
        (Decimal("-1.50"), "-1.50"),
        (float("inf"), "inf"),
        ([-float("inf"), Decimal(1), b"\x00\xff"], ["-inf", "1", "AP8="]),
        (datetime(2026, 5, 4, 3, 2, 1, 5, tzinfo=UTC), "2026-05-04T03:02:01.000005+00:00"),
        (date(2026, 5, 4), "2026-05-04"),
        (VALUE, str(VALUE)),
        ({1: "a", Decimal("2.5"): {date(2026, 5, 4): 1}}, {"1": "a", "2.5": {"2026-05-04": 1}}),
        ({b"\x00": float("inf"), "k": (1,)}, {"AA==": "inf", "k": [1]}),
    ],
)
def test_values(value: object, expected: object) -> None:
    assert json.loads(json_text(value)) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_python_does_not_write_is_hexadecimal_text_and_no_other(sign: int) -> None:
    most, more = sign * (10**4_300 - 1), sign * 10**4_300
    written = [most, {"x": 2**2_500}]
    assert json.loads(json_text(written)) == json_value(written) == written
    value = {"a": [more, {"b": (more, most)}], more: 1.5}
    assert json.loads(json_text(value)) == json_value(value)
    assert json_value(value) == {"a": [hex(more), {"b": [hex(more), most]}], hex(more): 1.5}
    assert int(json_value(more), 16) == more


def test_a_stream() -> None:
    events = STREAM + pack(([("bank.Deposited", 2, {"amount": Decimal("5.10")}), ("bank.Closed", 1, {})], b"\x01"))
    types, text = described(events, pack({"correlation_id": "c"}))
    assert types == ["bank.Deposited", "bank.Closed"]
    assert json.loads(text) == {
        "events": [
            {"type": "bank.Deposited", "schema_version": 2, "fields": {"amount": "5.10"}},
            {"type": "bank.Closed", "schema_version": 1, "fields": {}},
        ],
        "result": "AQ==",
        "metadata": {"correlation_id": "c"},
    }


def test_a_refusal() -> None:
    types, text = described(REFUSAL + pack(("bank.InsufficientFunds", 1, "too little", {"balance": 3})), b"")
    assert types == []
    assert json.loads(text) == {
        "refusal": {
            "type": "bank.InsufficientFunds",
            "schema_version": 1,
            "message": "too little",
            "fields": {"balance": 3},
        },
        "metadata": {},
    }


@pytest.mark.parametrize(("events", "metadata"), [(b"", b""), (b"\x09abc", b""), (STREAM + pack(([], None)), b"\xc1")])
def test_bytes_that_are_no_message_of_ours_are_refused(events: bytes, metadata: bytes) -> None:
    with pytest.raises(MalformedMessage):
        described(events, metadata)


@pytest.mark.parametrize("name", [5, b"bank.Opened", None])
def test_a_type_that_is_no_text_makes_a_row_malformed(name: Any) -> None:
    """Else it would end an export of all rows to an archive, whose column takes texts."""
    with pytest.raises(MalformedMessage):
        event_types(STREAM + pack(([(name, 1, {})], None)))
