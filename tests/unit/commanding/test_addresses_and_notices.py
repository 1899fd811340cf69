from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.bus import addresses
from enode_django.bus.addresses import answer_address, notice_address, reply_address
from enode_django.bus.notices import LONGEST_ERROR, Notice, decode_notice, encode_notice, notices_through
from enode_django.bus.replies import decode_reply
from enode_django.bus.results import CommandResult, CommandStatus, decode_result, encode_result
from enode_django.concurrency.backoff import once
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import MalformedMessage

RESULT = CommandResult(
    status=CommandStatus.SUCCESS, command_id="c", aggregate_root_id="x", version=3, event_types=("a.Opened", "a.Paid")
)


def test_examples_of_addresses_hold() -> None:
    done = doctest.testmod(addresses)
    assert done.attempted > 0
    assert done.failed == 0


@given(st.text(min_size=1).filter(lambda text: not text.startswith("handled@")))
def test_addresses_are_found_again_in_what_a_command_carries(inbox: str) -> None:
    executed, handled = reply_address(inbox), reply_address(inbox, handling=True)
    assert (answer_address(executed), notice_address(executed)) == (inbox, "")
    assert (answer_address(handled), notice_address(handled)) == (inbox, inbox)


ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.builds(Notice, ids, ids, ids, st.text(st.characters(exclude_categories=["Cs"]), max_size=LONGEST_ERROR)))
def test_notices_decode_as_they_were_encoded_and_are_no_answers(notice: Notice) -> None:
    assert decode_notice(encode_notice(notice)) == notice
    assert decode_reply(encode_notice(notice)) == notice
    with pytest.raises(MalformedMessage):
        decode_result(encode_notice(notice))


def test_answers_come_through_the_same_decoder_and_are_no_notices() -> None:
    assert decode_reply(encode_result(RESULT)) == RESULT
    with pytest.raises(MalformedMessage):
        decode_notice(encode_result(RESULT))


def test_error_of_a_notice_is_shortened_and_made_encodable() -> None:
    assert len(decode_notice(encode_notice(Notice("c", "x", "s", "e" * 100_000))).error) == LONGEST_ERROR
    assert decode_notice(encode_notice(Notice("c", "x", "s", "\ud800"))).error == "?"


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x02\x90", b"\x02\x05", b"\x02\x94\xa1c\xa1x\xa1s\x01", b"\x03\x90"])
def test_bytes_that_are_no_reply_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_reply(body)


def test_notices_go_to_their_addresses_and_nowhere_without_one() -> None:
    transport = MemoryTransport()
    inbox = transport.open_inbox()
    notices = [Notice("c1", "x", "s"), Notice("c2", "x", "s"), Notice("c3", "x", "s", "KeyError")]
    send = notices_through(transport, once)
    send([(inbox.address, notices[0]), ("", notices[1]), (inbox.address, notices[2])])
    assert [decode_reply(body) for body in inbox.receive(0)] == [notices[0], notices[2]]
