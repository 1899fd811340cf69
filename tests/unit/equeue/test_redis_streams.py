from __future__ import annotations

import pytest

from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.redis.batches import chunks, parse_entries
from enode_django.equeue.redis.location import ClusterLocation, SentinelLocation, parse_location
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ConfigurationError


def test_entries_without_a_gap_are_told_by_a_range() -> None:
    entries = [(b"8-0", [b"b", b"x"]), (b"9-0", [b"b", b""]), (b"10-0", [b"b", b"z"])]
    assert parse_entries(3, entries) == PulledBatch(3, range(7, 10), [b"x", b"", b"z"])


def test_entries_with_a_gap_are_told_one_by_one() -> None:
    entries = [(b"1-0", [b"b", b"x"]), (b"100-0", [b"b", b"y"])]
    assert parse_entries(0, entries) == PulledBatch(0, [0, 99], [b"x", b"y"])


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
        "redis+sentinel://:secret@one:26379",
        "redis+sentinel://:secret@one,,two/service",
        "redis+sentinel://:secret@one:port/service",
        "redis+cluster://:secret@",
        "redis+cluster://:secret@one:6379/3",
        "redis+cluster://:secret@one?db=3",
        "redis+cluster://:secret@one?no_such_option=1",
        "redis+sentinel://:secret@one/service?no_such_option=1",
        "redis+other://:secret@one",
    ],
)
def test_unusable_location_is_refused_without_telling_the_password(location: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RedisStreamsTransport(location)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_sentinels_and_their_own_login_are_read() -> None:
    location = parse_location(
        "rediss+sentinel://me:p%40ss@one:1,[::1]/main?db=3&sentinel_password=s&sentinel_username=u"
    )
    assert isinstance(location, SentinelLocation)
    assert (location.sentinels, location.service) == ((("one", 1), ("::1", 26379)), "main")
    assert location.own == {"username": "u", "password": "s"}
    assert {name: location.options[name] for name in ("username", "password", "db")} == {
        "username": "me",
        "password": "p@ss",
        "db": 3,
    }
    assert location.name == "main of sentinels one:1, ::1:26379"


def test_nodes_of_a_cluster_are_read() -> None:
    location = parse_location("redis+cluster://:secret@one,two:7000?socket_keepalive=no")
    assert isinstance(location, ClusterLocation)
    assert location.nodes == (("one", 6379), ("two", 7000))
    assert location.options == {"password": "secret", "socket_keepalive": False}


@pytest.mark.parametrize(
    "location", ["redis+sentinel://one/main", "rediss+sentinel://one/main", "rediss+cluster://one"]
)
def test_options_that_redis_py_does_not_take_are_named_for_all(location: str) -> None:
    RedisStreamsTransport(location).close()
    with pytest.raises(ConfigurationError, match="no_such_option"):
        RedisStreamsTransport(location, client={"no_such_option": 1})


@pytest.mark.parametrize("options", [{"wait_replicas": -1}, {"wait_replicas": 1, "wait_timeout": 0}])
def test_waiting_for_replicas_takes_a_number_and_a_time(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="wait_"):
        RedisStreamsTransport("redis://localhost", **options)


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
        assert options["socket_timeout"] >= 5
