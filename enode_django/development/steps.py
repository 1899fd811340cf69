"""The steps of a flow as processes send them to `enodedev`: each is one datagram with JSON."""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

import msgspec

from enode_django.telemetry.steplog import FIELDS

LONGEST_TEXT = 200
"""Characters of each text, so that a datagram rarely exceeds the 2,048 bytes that every system accepts."""


class Step(NamedTuple):
    """``time`` is in seconds since 1970. The other fields are those of `enode_django.telemetry.steplog.FIELDS`."""

    time: float
    part: str
    flow_id: str
    command_id: str
    subject: str
    aggregate_root_id: str
    version: int | None
    outcome: str
    seconds: float | None


assert Step._fields == ("time", *FIELDS)


def encode_step(record: logging.LogRecord) -> bytes:
    values = [record.created, *(getattr(record, name, None) for name in FIELDS)]
    short = [value[:LONGEST_TEXT] if isinstance(value, str) else value for value in values]
    return json.dumps(short, ensure_ascii=False).encode(errors="replace")


def decode_step(body: bytes) -> Step | None:
    """Return the step of a datagram; None if it is not one of `encode_step`."""
    try:
        return msgspec.json.decode(body, type=Step)
    except (msgspec.MsgspecError, ValueError):
        return None
