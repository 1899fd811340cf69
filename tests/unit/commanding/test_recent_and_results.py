from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from enode_django.bus.results import decode_result, encode_result, failure, stored_result
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.recent_commands import RecentCommands
from enode_django.concurrency.in_flight import position_of, queue_and_offset
from enode_django.equeue.producer import select_by_hash
from enode_django.eventstore.base import StreamRecord
from enode_django.serialization.codec import encode_stream
from tests.races.counting import Added, Created


def test_recent_commands_are_bounded_and_the_last_half_is_certain() -> None:
    recent = RecentCommands(10)
    for n in range(100):
        recent.remember(f"{n}", "x", None)
        known = [m for m in range(n + 1) if recent.find(f"{m}", "x") is not None]
        assert len(known) <= 10
        assert set(known) >= set(range(max(0, n - 4), n + 1))


def test_recent_command_is_known_for_its_aggregate_only_until_it_is_forgotten() -> None:
    recent, result = RecentCommands(2), failure("c", "x", ValueError("v"))
    recent.remember("c", "x", result)
    remembered = recent.find("c", "x")
    assert remembered is not None
    assert remembered.result is result
    assert recent.find("c", "y") is None
    recent.forget("c", "x")
    assert recent.find("c", "x") is None


@pytest.mark.parametrize(("queue", "offset"), [(0, 0), (3, 41), (2**15 - 1, 2**48 - 1)])
def test_position_is_above_zero_fits_eight_bytes_and_turns_back(queue: int, offset: int) -> None:
    position = position_of(queue, offset)
    assert 0 < position < 2**63 + 1
    assert queue_and_offset(position) == (queue, offset)


def test_aggregates_of_one_queue_use_all_mailboxes_evenly() -> None:
    router = MailboxRouter(4, 3)
    ids = [f"account-{n}" for n in range(20_000)]
    of_one_queue = [id for id in ids if select_by_hash(id, 8) == 5]
    pairs = Counter(router.mailboxes(id) for id in of_one_queue)
    assert len(pairs) == 12
    assert max(pairs.values()) < 1.4 * len(of_one_queue) / 12
    assert router.mailboxes("account-1") == MailboxRouter(4, 3).mailboxes("account-1")


def test_result_of_a_stored_stream_names_the_types_of_its_events_once() -> None:
    events = encode_stream([Added(amount=1, total=1), Created(), Added(amount=1, total=2)], result=5)
    record = StreamRecord("x", 3, "c", "races.Counter", "races.Add", datetime.now(UTC), events, b"")
    result = stored_result(record)
    assert (result.version, result.value, result.event_types) == (3, 5, ("races.Added", "races.Created"))
    assert decode_result(encode_result(result)) == result


def test_what_has_no_envelope_goes_beside_its_command_mailbox_wherever_the_aggregate_is_by_now() -> None:
    shard = [0]
    router = MailboxRouter(2, 3, shards=2, place_of=lambda id: shard[0])
    before = {id: router.mailboxes(id) for id in map(str, range(100))}
    shard[0] = 1
    assert {id: (box, router.event_mailbox_beside(box, id)) for id, (box, _) in before.items()} == before
