from __future__ import annotations

import pytest

from enode_django.equeue.transports.redis_batches import chunks, parse_entries
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ConfigurationError


def test_entries_without_a_gap_are_told_by_a_range() -> None:
    entries = [(b"8-0", [b"b", b"x"]), (b"9-0", [b"b", b""]), (b"10-0", [b"b", b"z"])]
    assert parse_entries(3, entries) == (3, range(7, 10), [b"x", b"", b"z"])


def test_entries_with_a_gap_are_told_one_by_one() -> None:
    entries = [(b"1-0", [b"b", b"x"]), (b"100-0", [b"b", b"y"])]
    assert parse_entries(0, entries) == (0, [0, 99], [b"x", b"y"])


def test_chunks_hold_a_bounded_number_of_messages() -> None:
    bodies = [b"%d" % number for number in range(1_001)]
    cut = [list(chunk) for chunk in chunks(bodies)]
    assert [len(chunk) for chunk in cut] == [500, 500, 1]
    assert [body for chunk in cut for body in chunk] == bodies


def test_chunks_hold_a_bounded_number_of_bytes() -> None:
    small, large = b"s" * 400_000, b"l" * 3_000_000
    assert [len(chunk) for chunk in chunks([small] * 5)] == [2, 2, 1]
    assert [list(chunk) for chunk in chunks([small, large, small])] == [[small], [large], [small]]
    assert list(chunks([large])) == [[large]]
    assert list(chunks([])) == []


@pytest.mark.parametrize(
    "location",
    [
        "",
        "secret",
        "http://:secret@localhost",
        "redis://user:secret@localhost:not-a-port/0",
        "redis://user:secret/word@localhost:6379/0",
        "redis://:secret@[::1/0",
        "redis://:secret@localhost/first",
        "redis://:secret@localhost?socket_timeout=soon",
        "redis://:secret@localhost?no_such_option=1",
        "unix://:secret@",
    ],
)
def test_unusable_location_is_refused_without_telling_the_password(location: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RedisStreamsTransport(location)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_option_that_redis_py_does_not_take_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no_such_option"):
        RedisStreamsTransport("redis://localhost", client={"no_such_option": 1})


@pytest.mark.parametrize("prefix", ["", "a b", "a{b}"])
def test_unusable_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisStreamsTransport("redis://localhost", prefix=prefix)


def test_location_cannot_change_how_answers_are_read() -> None:
    transport = RedisStreamsTransport("redis://localhost:1?decode_responses=yes&protocol=3&socket_timeout=0")
    node = transport._connection._servers.node("key")
    for client in (node.quick, node.blocking):
        options = client.connection_pool.connection_kwargs
        assert (options["decode_responses"], options["protocol"]) == (False, 2)
        assert options["socket_timeout"] >= 10
