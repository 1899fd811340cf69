"""Shared states: the drivers, and a Redis that fails."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import redis

from enode_django.exceptions import ConfigurationError, MalformedMessage
from enode_django.repository import redis_states
from enode_django.repository.breaker import Breaker
from enode_django.repository.redis_states import LARGEST, encode_state
from enode_django.repository.redis_states import RedisStates as RealRedisStates
from enode_django.repository.sealing import Seal
from enode_django.repository.states import MemoryStates, SharedStates
from enode_django.testing.shared_states_contract import SharedStatesContract, state
from sample_project.embedded_servers import Redis

NO_MATTER_HOW_SLOW = 10.0
RedisStates = partial(RealRedisStates, secrets=["a secret"])


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestMemoryStates(SharedStatesContract):
    @pytest.fixture
    def states(self) -> SharedStates:
        return MemoryStates()


class TestRedisStates(SharedStatesContract):
    @pytest.fixture
    def states(self, redis_url: str) -> Iterator[SharedStates]:
        states = RedisStates(redis_url, prefix=f"contract-{uuid.uuid4().hex}", ttl=60, timeout=NO_MATTER_HOW_SLOW)
        yield states
        states.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis({"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def client(server: Redis) -> Iterator[redis.Redis]:
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        yield client


@pytest.fixture
def states(server: Redis, client: redis.Redis, clock: Clock) -> Iterator[RealRedisStates]:
    """Yield states with a stopped clock: the server is never too slow, and after a failure it is left alone until the
    test advances the clock."""
    with contextlib.closing(RedisStates(server.url, ttl=60, timeout=NO_MATTER_HOW_SLOW, clock=clock)) as states:
        yield states


# -- the contents of Redis --------------------------------------------------------------------------------------------


def test_every_entry_bears_the_prefix_and_expires(states: RealRedisStates, client: redis.Redis) -> None:
    states.save([state("a"), state("b")])
    assert sorted(client.keys()) == [b"enode:state:a", b"enode:state:b"]
    assert all(0 < client.ttl(key) <= 60 for key in client.scan_iter())


def test_projects_with_prefixes_of_their_own_do_not_see_each_other(states: RealRedisStates, server: Redis) -> None:
    states.save([state()])
    with contextlib.closing(RedisStates(server.url, prefix="other", timeout=NO_MATTER_HOW_SLOW)) as other:
        assert other.load(["a"]) == {}
        other.delete("a")
    assert states.load(["a"]) == {"a": state()}


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"garbage",
        b"\x80\x04}.",
        b"\x96\x01\xa1t\x01\xa1f\x01\xc4\x00",  # our shape, of another format
        b"\x96\x02\xa1t\xc3\xa1f\x01\xc4\x00",  # a version that is not a number
        b"\x96\x02\xa1t\x01\xa1f\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc4\x00",  # a time beyond all times
    ],
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_garbage_is_told_once_deleted_and_replaced(
    states: RealRedisStates, client: redis.Redis, caplog: pytest.LogCaptureFixture, garbage: bytes, is_sealed: bool
) -> None:
    states.save([state("a"), state("b"), state("c")])
    for key in map(states.key, "ab"):
        client.set(key, Seal(["a secret"]).sealed(key, garbage) if is_sealed else garbage)
    assert states.load("abc") == {"c": state("c")}
    assert client.exists(states.key("a"), states.key("b")) == 0
    assert len(caplog.records) == 1
    states.save([state("a")])
    assert states.load(["a"]) == {"a": state("a")}
    assert not states.breaker.is_open


# -- permitted writers ------------------------------------------------------------------------------------------------


def sealed_with(server: Redis, *secrets: str) -> RealRedisStates:
    return RedisStates(server.url, secrets=secrets, timeout=NO_MATTER_HOW_SLOW)


def test_a_state_that_no_secret_of_the_project_has_sealed_is_none(
    states: RealRedisStates, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Its shape and its digest may be right: everybody can compute these."""
    forged = encode_state(state())
    for value in (forged, bytes(32) + forged, Seal(["another secret"]).sealed(states.key("a"), forged)):
        client.set(states.key("a"), value)
        assert states.load(["a"]) == {}
        assert not client.exists(states.key("a"))
    assert "no seal of this project" in told(caplog)[0]


def test_a_state_is_none_of_another_aggregate(states: RealRedisStates, client: redis.Redis) -> None:
    states.save([state("a")])
    client.copy(states.key("a"), states.key("b"))
    assert states.load("ab") == {"a": state("a")}


def test_no_end_of_a_name_can_become_the_beginning_of_a_value() -> None:
    seal = Seal(["a secret"])
    sealed = seal.sealed("state:ab", b"value")
    digest = sealed.removesuffix(b"value")
    assert seal.opened("state:ab", sealed) == b"value"
    with pytest.raises(MalformedMessage):
        seal.opened("state:a", digest + b"bvalue")


def test_no_bit_of_a_sealed_state_can_be_changed(states: RealRedisStates, client: redis.Redis) -> None:
    states.save([state()])
    value: bytes = client.get(states.key("a"))  # type: ignore[assignment]
    for place in range(len(value)):
        client.set(states.key("a"), value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :])
        assert states.load(["a"]) == {}
    client.set(states.key("a"), value)
    assert states.load(["a"]) == {"a": state()}


def test_states_outlive_a_secret_as_long_as_it_is_a_fallback(server: Redis, client: redis.Redis) -> None:
    with (
        contextlib.closing(sealed_with(server, "old")) as old,
        contextlib.closing(sealed_with(server, "new", "old")) as rotated,
        contextlib.closing(sealed_with(server, "new")) as new,
    ):
        old.save([state("a"), state("b")])
        assert rotated.load("ab") == {"a": state("a"), "b": state("b")}
        rotated.save([state("a")])
        assert new.load("ab") == {"a": state("a")}


@pytest.mark.parametrize("secrets", [[], [""], ["one", ""]])
def test_without_a_secret_nothing_can_be_sealed(secrets: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="set SECRET_KEY"):
        RedisStates("redis://localhost:1/0", secrets=secrets)


# -- what does not fit ------------------------------------------------------------------------------------------------


def test_a_value_of_another_kind_is_as_good_as_none(states: RealRedisStates, client: redis.Redis) -> None:
    client.rpush(states.key("a"), "a list")
    assert states.load(["a"]) == {}
    states.save([state()])
    assert states.load(["a"]) == {"a": state()}


def test_what_is_too_large_is_left_out(states: RealRedisStates, caplog: pytest.LogCaptureFixture) -> None:
    large = [state(id, payload=b"x" * (LARGEST + 1)) for id in "ab"]
    states.save([*large, state("c", payload=b"x" * LARGEST)])
    assert set(states.load("abc")) == {"c"}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("location", ["", "localhost", "http://localhost", "redis+sentinel://localhost"])
def test_a_location_that_names_no_server_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError):
        RedisStates(location)


# -- a redis that fails -----------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def assert_left_alone(states: RealRedisStates, client: redis.Redis) -> None:
    """Check that the server, which answers again, is not asked."""
    before = client.info("commandstats")
    states.save([state("x")])
    states.delete("x")
    assert states.load(["a"]) == {}
    after = client.info("commandstats")
    for command in ("cmdstat_set", "cmdstat_mget", "cmdstat_unlink"):
        assert after.get(command) == before.get(command)


def test_one_that_is_down_is_left_alone_for_a_while_and_then_used_again(
    states: RealRedisStates, server: Redis, client: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    states.save([state()])
    server.stop()
    assert states.load(["a"]) == {}
    states.save([state()])
    states.delete("a")
    assert len(told(caplog)) == 1, "the server is named once, not for each call"
    server.start()
    assert_left_alone(states, client)
    clock.now += redis_states.PAUSE
    states.save([state("b")])
    assert states.load("ab") == {"b": state("b")}
    assert len(told(caplog)) == 2, "it answers again"


def test_one_that_was_restarted_between_two_calls_goes_unnoticed(
    states: RealRedisStates, server: Redis, client: redis.Redis
) -> None:
    states.save([state()])
    server.restart()
    assert states.load(["a"]) == {}
    states.save([state()])
    assert states.load(["a"]) == {"a": state()}


def test_one_that_is_full_is_left_alone_for_a_while_and_then_used_again(
    states: RealRedisStates, client: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    states.save([state()])
    client.config_set("maxmemory", 1)
    states.save([state("b")])
    assert re.search("OOM|maxmemory", *told(caplog))
    client.config_set("maxmemory", 0)
    assert_left_alone(states, client)
    clock.now += redis_states.PAUSE
    states.save([state("b")])
    assert states.load("ab") == {"a": state(), "b": state("b")}


def test_one_that_does_not_answer_is_waited_for_no_longer_than_the_timeout(
    server: Redis, client: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(RedisStates(server.url, clock=clock)) as states:
        server.pause()
        try:
            assert states.load(["a"]) == {}
        finally:
            server.resume()
        (line,) = told(caplog)
        assert "Timeout" in line
        assert_left_alone(states, client)
        clock.now += redis_states.PAUSE
        assert not states.breaker.is_open


def test_one_that_answers_late_is_left_alone_too(
    states: RealRedisStates, client: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer is taken: what it says is held against the store in any case."""
    states.save([state()])
    execute = states._connection.execute

    def slow(*command: str | int | bytes) -> object:
        clock.now += 3 * NO_MATTER_HOW_SLOW
        return execute(*command)

    states._connection.execute = slow  # type: ignore[method-assign]
    assert states.load(["a"]) == {"a": state()}
    assert "took 30.000 s" in told(caplog)[0]
    assert states.breaker.is_open


def test_a_write_may_be_long_under_way(states: RealRedisStates, clock: Clock) -> None:
    """No command waits for a write, and on a busy machine the delay is our own thread's."""
    execute_all = states._connection.execute_all

    def slow(commands: Sequence[Sequence[str | int | bytes]]) -> object:
        clock.now += 3 * NO_MATTER_HOW_SLOW
        return execute_all(commands)

    states._connection.execute_all = slow  # type: ignore[method-assign, assignment]
    states.save([state()])
    assert not states.breaker.is_open
    assert states.load(["a"]) == {"a": state()}


def test_one_that_refuses_the_password_breaks_nothing(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    location = server.url.replace(server.password, "wrong")
    with contextlib.closing(RedisStates(location, timeout=NO_MATTER_HOW_SLOW)) as states:
        states.save([state()])
        assert states.load(["a"]) == {}
    assert "refuses this user or password" in told(caplog)[0]
    assert server.password not in caplog.text


# -- the breaker ------------------------------------------------------------------------------------------------------


def test_a_breaker_is_open_for_its_pause_and_one_of_many_opens_it(clock: Clock) -> None:
    breaker = Breaker(5.0, clock=clock)
    assert not breaker.is_open
    assert [breaker.trip(), breaker.trip()] == [True, False]
    clock.now += 4.9
    assert breaker.is_open
    assert not breaker.trip()
    clock.now += 0.2
    assert not breaker.is_open, "what failed while it was open does not keep it open"
    assert breaker.trip()
