from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.replying import deliver
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import BadRequest, MalformedFrame, PartlyUnavailable
from tests.equeue.brokers import DEADLINE

TOO_LONG = "x" * 2_000


def test_an_answer_to_an_address_that_is_none_is_dropped_and_all_others_arrive(orders: Transport) -> None:
    inboxes = [orders.open_inbox() for _ in range(2)]
    one, other = [inbox.address for inbox in inboxes]
    replies = [(TOO_LONG, b"a"), (one, b"1"), ("\0\n", b"b"), (other, b"2"), (TOO_LONG, b"c"), (one, b"3")]
    deliver(orders, replies)
    received: list[bytes] = []
    while len(received) < 2:
        received += inboxes[0].receive(DEADLINE)
    assert received == [b"1", b"3"]
    assert inboxes[1].receive(DEADLINE) == [b"2"]


@pytest.mark.parametrize("queue", ["broker_queue", "redis_queue"])
def test_what_is_dropped_is_logged_in_one_short_line(
    request: pytest.FixtureRequest, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(request.getfixturevalue(queue), [(TOO_LONG, b"1234")])
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("an answer of 4 bytes for 'xxx")
    assert len(line) < 500


class Refusing(MemoryTransport):
    """Refuses addresses that begin with "no". While ``is_away``, it cannot reach those that begin with "later"."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []
        self.is_away = True

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        if any(address.startswith("no") for address, _ in replies):
            raise BadRequest("none") if len(replies) % 2 else MalformedFrame("none")
        reached = [
            place for place, (address, _) in enumerate(replies) if not (self.is_away and address.startswith("later"))
        ]
        self.taken += [replies[place][0] for place in reached]
        if len(reached) < len(replies):
            raise PartlyUnavailable("away", answers=dict.fromkeys(reached, True))


@given(st.permutations(["a", "no1", "later1", "b", "no2", "c", "later2", "d"]))
def test_none_arrives_twice_where_some_are_refused_and_others_cannot_be_reached_yet(names: list[str]) -> None:
    transport, left = Refusing(), [(name, b"") for name in names]
    with pytest.raises(PartlyUnavailable):
        deliver(transport, left)
    transport.is_away = False
    deliver(transport, left)
    assert sorted(transport.taken) == ["a", "b", "c", "d", "later1", "later2"]
