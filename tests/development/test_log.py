"""The log of `enodedev`: what travels, what belongs together, and how it looks."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from enode_django.development.groups import LONGEST, QUIET, Groups
from enode_django.development.lines import Lines
from enode_django.development.steps import LONGEST_TEXT, Step, decode_step, encode_step
from enode_django.telemetry.steplog import FIELDS

STEP = Step(1_700_000_000.25, "command", "order-4711", "c1", "bank.Deposit", "ada", 4, "bank.Deposited", 0.0015)


def step(**changed: Any) -> Step:
    return STEP._replace(**changed)


def record_of(step: Step) -> logging.LogRecord:
    record = logging.makeLogRecord({name: getattr(step, name) for name in FIELDS})
    record.created = step.time
    return record


def test_a_step_arrives_as_it_was_told() -> None:
    assert decode_step(encode_step(record_of(STEP))) == STEP
    assert decode_step(encode_step(record_of(step(version=None, seconds=None)))) == step(version=None, seconds=None)


def test_a_long_step_fits_into_a_datagram() -> None:
    long = step(outcome="failed: " + "ü" * 5_000, flow_id="ü" * 255, subject="ü" * 255, aggregate_root_id="ü" * 255)
    body = encode_step(record_of(long))
    assert len(body) < 2_048
    arrived = decode_step(body)
    assert arrived is not None
    assert len(arrived.outcome) == LONGEST_TEXT


def test_half_a_character_does_not_keep_a_step_from_being_sent() -> None:
    assert decode_step(encode_step(record_of(step(outcome="failed: \ud800")))) == step(outcome="failed: ?")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xff", b"{}", b"7", b"[]", b'"time"', b"[" * 100_000),
        *(json.dumps(wrong).encode() for wrong in ([*STEP, 1], [1] * 9, [*STEP[:6], "4", *STEP[7:]])),
    ],
    ids=range(10),
)
def test_what_is_no_step_is_passed_over(body: bytes) -> None:
    assert decode_step(body) is None


def test_steps_of_a_request_are_seen_together_and_in_order() -> None:
    groups = Groups()
    web, command, other = step(part="web", time=3.0), step(time=1.0), step(flow_id="else", time=2.0)
    for one in (web, other, command):
        groups.add(one, 10.0)
    assert groups.take_due(10.0 + QUIET / 2) == []
    groups.add(other, 10.0 + QUIET / 2)
    assert groups.take_due(10.0 + QUIET) == [[command, web]]
    assert groups.take_due(10.0 + 2 * QUIET) == [[other, other]]
    assert groups.take_all() == []


def test_a_request_that_goes_on_and_on_is_shown_in_between() -> None:
    groups = Groups()
    now = 0.0
    while not (shown := groups.take_due(now)):
        groups.add(STEP, now)
        now += QUIET / 2
    assert LONGEST <= now <= LONGEST + QUIET
    assert len(shown[0]) > 5


def test_a_line_names_part_request_command_aggregate_version_time_and_outcome() -> None:
    line, end = Lines(coloured=False).of_group([STEP])
    assert end == ""
    assert line.split()[1:] == ["command", "der-4711", "bank.Deposit", "ada", "v4", "1.5", "ms", "bank.Deposited"]
    assert line[8:12] == ".250"


def test_what_failed_is_coloured_on_a_terminal_only() -> None:
    failed = step(outcome="failed: ValueError: x")
    assert "\x1b[" not in "".join(Lines(coloured=False).of_group([failed]))
    (line, _), (fine, _) = (list(Lines(coloured=True).of_group([one])) for one in (failed, STEP))
    assert "\x1b[31;1mfailed" in line
    assert "\x1b[31;1m" not in fine


def test_hostile_ids_and_texts_cannot_write_to_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07\r\n\u202e"
    found = step(flow_id=hostile, subject=hostile, aggregate_root_id=hostile, outcome=hostile)
    line, _ = Lines(coloured=False).of_group([found])
    assert line.isprintable()
