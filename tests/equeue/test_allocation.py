"""The setting ``ALLOCATION``: queues are divided by a function of the project."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings

from enode_django.checks.settings import check_settings
from enode_django.conf import conf
from enode_django.equeue.assignment import Allocate, allocated, divide
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ConfigurationError
from enode_django.processors.broker_options import broker_options
from enode_django.runtime import chosen_allocation, make_transport
from tests.equeue.allocations import all_to_the_first, nonsense
from tests.equeue.brokers import RunningBroker

MEMORY = "enode_django.equeue.transports.memory.MemoryTransport"
PATH = "tests.equeue.allocations"


def test_what_is_given_is_taken_and_who_is_left_out_has_nothing() -> None:
    given = allocated(lambda queues, members, current: {"b": [2, 0, 1]}, range(3), ["a", "b"])
    assert given == {"a": frozenset(), "b": frozenset({0, 1, 2})}
    assert allocated(all_to_the_first, range(3), []) == {}


def test_it_is_told_what_each_has() -> None:
    told: list[Any] = []
    current = {"a": frozenset({0}), "gone": frozenset({1})}
    allocated(lambda *given: told.append(given) or divide(*given), [0, 1], ["a", "b"], current)
    assert told == [([0, 1], ["a", "b"], current)]


def fails(*given: object) -> Mapping[str, frozenset[int]]:
    raise RuntimeError("no way")


@pytest.mark.parametrize(
    ("allocate", "message"),
    [
        (nonsense, "tests.equeue.allocations.nonsense gives queue 0 to 2 members; queues are divided evenly instead"),
        (lambda *_: {}, "gives queue 0 to no members"),
        (lambda *_: {"a": [0, 1]}, "gives queue 2 to no members"),
        (lambda *_: {"a": [0, 1, 2, 2]}, "gives queue 2 to 2 members"),
        (lambda *_: {"a": [0, 1, 2], "c": []}, "gives queues to 'c', which is not a member"),
        (lambda *_: {"a": [0, 1, 2, 7]}, "gives away queue 7, which does not exist"),
        (lambda *_: None, "fails"),
        (lambda *_: {"a": 5}, "fails"),
        (fails, "test_allocation.fails fails; queues are divided evenly instead"),
    ],
)
def test_nonsense_is_logged_and_the_group_goes_on_evenly(
    allocate: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    current = {"b": frozenset({0, 1})}
    assert allocated(allocate, range(3), ["a", "b"], current) == divide(range(3), ["a", "b"], current)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert message in record.getMessage()


# -- of each transport ------------------------------------------------------------------------------------------------

Open = Callable[[Allocate], Any]


@pytest.fixture(params=["memory", "broker", "redis"])
def dividing(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A function that opens a transport whose queues are divided by a function of `allocations`."""

    @contextmanager
    def memory(allocate: Allocate) -> Iterator[Transport]:
        yield MemoryTransport(allocate=allocate)

    @contextmanager
    def broker(allocate: Allocate) -> Iterator[Transport]:
        path = f"{allocate.__module__}.{allocate.__name__}"  # type: ignore[attr-defined]
        with (
            RunningBroker(tmp_path / "data", allocate=path, patience_of_leases=0.1) as running,
            closing(running.transport()) as transport,
        ):
            yield transport

    @contextmanager
    def redis_streams(allocate: Allocate) -> Iterator[Transport]:
        url, prefix = request.getfixturevalue("redis_url"), f"test-{uuid.uuid4().hex}"
        with closing(RedisStreamsTransport(url, prefix=prefix, allocate=allocate, timeout=60)) as transport:
            yield transport
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{prefix}:*", count=1_000):
                client.delete(key)

    return {"memory": memory, "broker": broker, "redis": redis_streams}[request.param]


def owned(transport: Transport, *members: str, group: str = "g") -> list[frozenset[int]]:
    """Let the members join. Return the queues that each shall own when all have joined."""
    for member in members:
        transport.join(group, "t", member, 300.0)
    return [frozenset(transport.join(group, "t", member, 300.0).queues) for member in members]


def test_every_transport_divides_as_it_is_told(dividing: Open) -> None:
    with dividing(all_to_the_first) as transport:
        transport.create_topic("t", 4)
        assert owned(transport, "a", "b", "c") == [frozenset(range(4)), frozenset(), frozenset()]
        transport.leave("g", "t", "a")
        assert owned(transport, "b", "c") == [frozenset(range(4)), frozenset()]
        transport.bury("g", "t", "b")
        transport.add_queues("t", 5, unordered=True)
        assert owned(transport, "c") == [frozenset(range(5))]


def test_a_queue_has_other_workers_in_another_group(dividing: Open) -> None:
    """One busy queue then occupies several processes, instead of several threads that wait for each other in one."""
    with dividing(divide) as transport:
        transport.create_topic("t", 4)
        assert owned(transport, "a", "b", group="ledger") == [{0, 1}, {2, 3}]
        assert owned(transport, "a", "b", group="invoices") == [{1, 2}, {3, 0}]
        transport.leave("invoices", "t", "a")
        assert owned(transport, "b", "c", group="invoices") == [{1, 2}, {3, 0}]


def test_every_transport_goes_on_evenly_after_nonsense(dividing: Open) -> None:
    with dividing(nonsense) as transport:
        transport.create_topic("t", 4)
        assert sorted(map(len, owned(transport, "a", "b", "c"))) == [1, 1, 2]


def test_a_broker_divides_as_it_is_told_after_a_restart(tmp_path: Path) -> None:
    path = f"{PATH}.all_to_the_first"
    with RunningBroker(tmp_path / "data", allocate=path) as broker:
        with closing(broker.transport()) as transport:
            transport.create_topic("t", 4)
            assert owned(transport, "a", "b") == [frozenset(range(4)), frozenset()]
            transport.bury("g", "t", "a", [(0, 0)])
        broker.kill()
        broker.start()
        with closing(broker.transport()) as transport:
            assert transport.groups("t")["g"].division == {"b": frozenset(range(4))}
            assert owned(transport, "a0", "b") == [frozenset(range(4)), frozenset()]


# -- the setting ------------------------------------------------------------------------------------------------------


def test_evenly_is_the_default() -> None:
    with override_settings(ENODE={}):
        assert chosen_allocation(conf()) is divide
        assert broker_options(conf()).allocate is divide


def test_the_setting_reaches_the_broker_and_the_transports_that_divide() -> None:
    enode = {"QUEUE": {"ALLOCATION": f"{PATH}.all_to_the_first", "BACKEND": MEMORY}}
    with override_settings(ENODE=enode):
        assert broker_options(conf()).allocate is all_to_the_first
        transport = make_transport()
        transport.create_topic("t", 4)
        assert owned(transport, "a", "b") == [frozenset(range(4)), frozenset()]
        assert check_settings(None) == []
    with override_settings(ENODE={"QUEUE": {"ALLOCATION": f"{PATH}.all_to_the_first"}}):
        make_transport().close()  # the client of a broker divides nothing


@pytest.mark.parametrize("path", ["no.such.thing", "nothing", f"{PATH}.missing", f"{PATH}.NO_FUNCTION", "", 5])
def test_what_is_no_function_is_found_by_the_check_and_refused(path: object) -> None:
    with override_settings(ENODE={"QUEUE": {"ALLOCATION": path, "BACKEND": MEMORY}}):
        (message,) = check_settings(None)
        assert (message.id, f'ENODE QUEUE["ALLOCATION"] names {path!r}' in message.msg) == ("enode_django.E039", True)
        for use in (lambda: chosen_allocation(conf()), make_transport, lambda: broker_options(conf())):
            with pytest.raises(ConfigurationError, match=r'ENODE QUEUE\["ALLOCATION"\]'):
                use()
