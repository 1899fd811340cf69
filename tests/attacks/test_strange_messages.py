"""Messages whose parts have wrong types or sizes. They must not end workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.bus.messages import decode_published
from enode_django.commanding.intake import Intake
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.equeue.offsets import OffsetWindow
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.codec import LONGEST_REPLY_ADDRESS, decode_command
from enode_django.serialization.plain import pack

COMMAND = [1, "bank.Deposit", "command", "account", {}, b"", "inbox"]
STREAM = [1, "bank.Account", "account", 7, "command", "bank.Deposit", datetime(2026, 1, 1, tzinfo=UTC), b"", b"", "in"]
STRANGE = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False), st.binary(max_size=3)
) | st.sampled_from([[], {}, [[]], "", "\0", "x" * 2_000, "handled@" * 200, datetime(2026, 1, 1, tzinfo=UTC)])


def spoilt(sound: list[Any], values: dict[int, Any]) -> bytes:
    return pack([values.get(place, value) for place, value in enumerate(sound)])


@given(st.dictionaries(st.integers(0, len(COMMAND) - 1), STRANGE, min_size=1, max_size=2))
def test_a_command_is_taken_or_put_among_the_dead_letters_and_answers_nobody_who_cannot_be(
    values: dict[int, Any],
) -> None:
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=0.0)
    window.add([0])
    intake = Intake(MailboxRouter(1, 1), RememberedAnswers(0, lambda window: ()), delays=())
    received = intake.receive(window, [0], [spoilt(COMMAND, values)])
    (envelope,) = [*received.commands, *(one.envelope for one in received.finished)]
    assert len(envelope.reply_to) <= LONGEST_REPLY_ADDRESS


@pytest.mark.parametrize("address", ["x" * 2_000, "handled@" + "x" * 2_000, "crashes@" + "x" * 2_000])
def test_a_command_with_an_address_that_no_inbox_has_is_broken_and_nobody_is_told(address: str) -> None:
    with pytest.raises(MalformedMessage, match=r"address of 20\d\d characters is none of ours"):
        decode_command(spoilt(COMMAND, {6: address}))
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=0.0)
    window.add([0])
    intake = Intake(MailboxRouter(1, 1), RememberedAnswers(0, lambda window: ()), delays=())
    (broken,) = intake.receive(window, [0], [spoilt(COMMAND, {6: address})]).finished
    assert (broken.envelope.id, broken.envelope.aggregate_root_id, broken.envelope.reply_to) == (
        "command",
        "account",
        "",
    )
    assert isinstance(broken.envelope.failed, MalformedMessage)


@given(st.dictionaries(st.integers(0, len(STREAM) - 1), STRANGE, min_size=1, max_size=2))
def test_an_event_stream_is_as_subscribers_expect_it_or_refused(values: dict[int, Any]) -> None:
    try:
        record, reply_to, _ = decode_published(spoilt(STREAM, values))
    except MalformedMessage:
        return
    for text in (record.aggregate_root_id, record.aggregate_root_type, record.command_id, record.command_type):
        assert "\0" not in text
        assert len(text) <= 255
    assert len(reply_to) <= LONGEST_REPLY_ADDRESS
    assert record.version is None or 0 < record.version < 1 << 63
    assert (type(record.events), type(record.metadata), type(record.created_at)) == (bytes, bytes, datetime)
