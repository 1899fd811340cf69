"""Commands that wait in a database are named by their type, which the first bytes of their messages have."""

from __future__ import annotations

from decimal import Decimal

import pytest

from enode_django import Command
from enode_django.models import OutboxCommand, ScheduledCommand
from enode_django.models.outbox import HEAD
from enode_django.serialization.codec import encode_command
from sample_project.bank.domain import Deposit

MODELS = (OutboxCommand, ScheduledCommand)
BODY = encode_command(Deposit("ada", amount=Decimal("2.50"), id="d1"), b"", expected_version=3)


class LongNamed(Command):
    type_name = "\U0001d51f" * 255


def named(model: type[OutboxCommand] | type[ScheduledCommand], body: bytes) -> str:
    return str(model(aggregate_root_id="ada", command_id="d1", body=body))


@pytest.mark.parametrize("model", MODELS)
def test_a_command_is_named_by_its_type(model: type[OutboxCommand] | type[ScheduledCommand]) -> None:
    assert named(model, BODY) == "bank.Deposit d1 for ada"
    assert named(model, memoryview(BODY)) == "bank.Deposit d1 for ada"  # type: ignore[arg-type]  # as Django reads it


@pytest.mark.parametrize(
    "body", [b"", BODY[:3], BODY[:8], b"\x91" * HEAD, b"\xff" * HEAD, b"\x97\x01\xa2\xff\xff", b"\x97\x01\x80", b"{}"]
)
def test_bytes_that_are_no_command_have_no_type(body: bytes) -> None:
    assert named(ScheduledCommand, body) == "command d1 for ada"


def test_the_longest_name_is_among_the_first_bytes() -> None:
    """Tables have no room for a longer one."""
    body = encode_command(LongNamed("ada", id="d1"), b"", expected_version=3)
    assert named(ScheduledCommand, body) == f"{LongNamed.type_name} d1 for ada"
