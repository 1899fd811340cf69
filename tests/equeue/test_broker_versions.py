"""Clients and brokers of neighbouring versions work together, so that hosts are upgraded one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

from enode_django.equeue import wire
from enode_django.equeue.broker.requests import REQUESTS
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.broker_address import Address, address_of
from enode_django.equeue.transports.broker_connection import Connection
from enode_django.equeue.wire import (
    MAGIC,
    SPOKEN,
    VERSION,
    Versions,
    chosen_version,
    error_of,
    error_values,
    proof,
)
from enode_django.exceptions import (
    BadRequest,
    ConfigurationError,
    EnodeError,
    QueueError,
    QueueFull,
    QueueHeld,
    UnknownQueue,
    UnknownRequest,
)
from tests.equeue.broker_process import ANSWERS_WITH_MORE, with_more
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.golden_frames import (
    GOLDEN,
    SECRET,
    Asking,
    FrameServer,
    Pair,
    fits,
    read_golden,
    results_of,
    unpacked,
)
from tests.equeue.test_broker_bad_input import Raw

NEXT = VERSION + 1
SPEAKS_NEXT = Versions(VERSION, NEXT)
RECORDED = [number for number in range(1, VERSION + 1) if (GOLDEN / f"version-{number}.json").exists()]


@pytest.fixture(params=["of today", "of the next version"])
def any_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", newer=request.param != "of today") as broker:
        yield broker


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("newer") / "data", newer=True) as broker:
        yield broker


WITH_MORE_SINCE = {"pull"}
"""Requests whose answers have got fields since they were recorded, at the end: the version of the route."""


def test_the_versions_that_are_spoken_are_recorded() -> None:
    assert set(range(SPOKEN.oldest, SPOKEN.newest + 1)) <= set(RECORDED)


# Earlier clients


def is_like(pair: Pair, answer: Any) -> bool:
    """Return True if the answer fits the recorded one. Errors are compared by name, not by text."""
    recorded = unpacked(pair.answer)
    if recorded[1] is False:
        return bool(answer[:3] == recorded[:3])
    return fits(recorded, answer, is_exact=pair.is_exact)


@pytest.mark.parametrize("number", RECORDED)
def test_recorded_requests_are_answered_as_they_were(any_broker: RunningBroker, number: int) -> None:
    is_newer = bool(any_broker._options["newer"])
    with closing(Asking(any_broker.location)) as asking:
        for pair in read_golden(f"version-{number}").pairs:
            if is_newer and unpacked(pair.request)[1] == "fly":
                continue  # the recorded broker did not know this request, and this broker does
            answer = asking.ask(pair.request)
            assert is_like(pair, unpacked(answer)), (unpacked(pair.request), unpacked(pair.answer), unpacked(answer))
            has_more = unpacked(pair.request)[1] in WITH_MORE_SINCE
            if not is_newer and not has_more and pair.is_exact and unpacked(pair.answer)[1] is True:
                assert answer == pair.answer


@pytest.mark.parametrize("number", RECORDED)
def test_every_recorded_request_is_known(number: int) -> None:
    names = {unpacked(pair.request)[1] for pair in read_golden(f"version-{number}").pairs}
    assert names - {"hello", "fly"} <= REQUESTS.keys()


@pytest.mark.parametrize("number", RECORDED)
def test_recorded_proofs_of_a_secret_are_those_of_today(number: int) -> None:
    hello, prove = read_golden(f"version-{number}-secret").pairs[:2]
    nonces = unpacked(hello.request)[2][2], unpacked(hello.answer)[2]["nonce"]
    assert unpacked(prove.request)[1:] == ["prove", [proof(SECRET, "client", *nonces)]]
    assert unpacked(prove.answer)[1:] == [True, proof(SECRET, "broker", *nonces)]


# Earlier brokers


class RecordedBroker:
    """Answers the calls of one client as a recorded broker did. With ``adds``, answers get fields as the next version
    might add them."""

    def __init__(self, pairs: Sequence[Pair], *, adds: bool = False) -> None:
        self._pairs = iter(pairs)
        self._adds = adds

    def answer(self, connection: int, request: bytes) -> bytes:
        pair = next(self._pairs)
        recorded, asked = unpacked(pair.request), unpacked(request)
        name = recorded[1]
        is_exact = pair.is_exact and "inbox" not in name and name not in ("reply", "receive", "hello")
        assert fits(recorded, asked, is_exact=is_exact), (recorded, asked)
        if is_exact:
            assert request == pair.request
        return self._with_more(name, pair.answer) if self._adds else pair.answer

    @staticmethod
    def _with_more(name: str, answer: bytes) -> bytes:
        number, is_good, *values = unpacked(answer)
        if not is_good:
            values.append("added")
        elif name == "hello":
            values = [{**values[0], "versions": [*SPEAKS_NEXT, "added"], "added": 1}, "added"]
        elif name in ANSWERS_WITH_MORE or name == "receive":
            values = [with_more(values[0], ANSWERS_WITH_MORE.get(name, 0)), "added"]
        elif name == "pull":
            values = [[[queue, [[*batch, 1] for batch in batches], 1] for queue, batches in values[0]]]
        packed: bytes = msgpack.packb((number, is_good, *values))
        return packed


@pytest.mark.parametrize("adds", [False, True], ids=["as recorded", "of the next version"])
@pytest.mark.parametrize("number", RECORDED)
def test_the_client_reads_recorded_answers_as_it_did(number: int, adds: bool) -> None:
    golden = read_golden(f"version-{number}")
    with FrameServer(RecordedBroker(golden.pairs, adds=adds).answer) as server:
        with closing(BrokerTransport(server.location)) as transport:
            try:
                found = results_of(transport)
            except QueueError:
                assert server.errors == []
                raise
        assert server.errors == []
    for result, (call, value) in zip(golden.results, found, strict=True):
        assert call == result.call
        if result.value == {"error": "BadRequest"}:
            assert value in (result.value, {"error": "UnknownRequest"})
        else:
            assert fits(result.value, value, is_exact=result.is_exact), (call, result.value, value)
            assert not result.is_exact or call.split()[0] in WITH_MORE_SINCE or value == result.value


# Agreeing


def newer_address(location: str, secret: str | None = None, spoken: Versions = SPEAKS_NEXT) -> Address:
    known = address_of(location, secret, None)
    return Address(known.host, known.port, known.secret, known.tls, spoken)


def ask(connection: Connection, name: str, *arguments: Any) -> Any:
    return connection.call(name, arguments, time.monotonic() + DEADLINE)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_newer_client_speaks_as_the_broker_does(tmp_path: Path, secret: str | None) -> None:
    with RunningBroker(tmp_path / "data", secret=secret) as broker:
        connection = Connection(newer_address(broker.location, secret), DEADLINE)
        assert connection.version == VERSION
        assert ask(connection, "create_topic", "t", 2, "an argument of the next version") == 2
        with pytest.raises(UnknownRequest, match="upgrade enode_django on the broker's host"):
            ask(connection, "fly", "home")
        assert ask(connection, "topics") == ["t"]
        connection.close()


def test_a_newer_client_speaks_with_a_recorded_broker() -> None:
    with FrameServer(RecordedBroker(read_golden("version-1").pairs).answer) as server:
        connection = Connection(newer_address(server.location), DEADLINE)
        assert (connection.version, ask(connection, "topics")) == (1, [])
        connection.close()


@pytest.mark.parametrize("secret", [None, SECRET])
def test_both_speak_the_newest_version_that_they_know(tmp_path: Path, secret: str | None) -> None:
    with RunningBroker(tmp_path / "data", newer=True, secret=secret) as broker:
        new = Connection(newer_address(broker.location, secret), DEADLINE)
        old = Connection(address_of(broker.location, secret, None), DEADLINE)
        assert (new.version, old.version) == (NEXT, VERSION)
        assert ask(new, "fly", "home") == "flew to home"
        assert ask(new, "create_topic", "t", 2, None) == ask(old, "create_topic", "t", 2) == 2
        new.close(), old.close()


def test_a_client_that_is_too_new_says_to_upgrade_the_broker(broker: RunningBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"speaks version 2 .* or later.* upgrade .* the broker's host"):
        Connection(newer_address(broker.location, spoken=Versions(NEXT, NEXT + 1)), DEADLINE)


def test_a_client_that_is_too_old_is_told_so_at_its_first_request(newer: RunningBroker) -> None:
    raw = Raw(newer.location, greet=False)
    assert raw.ask(1, "hello", [MAGIC, VERSION - 1, os.urandom(16)])[1] is True
    _, good, error, text, _ = raw.ask(2, "create_topic", ["too-old", 1])
    assert (good, error) == (False, "ConfigurationError")
    assert f"speaks version {VERSION - 1}" in text
    assert "upgrade enode_django on the client's host" in text
    assert raw.answer() is None
    with closing(newer.transport()) as transport:
        assert "too-old" not in transport.topics()


def test_a_client_that_is_too_old_notices_it(newer: RunningBroker) -> None:
    with pytest.raises(ConfigurationError, match="upgrade enode_django on the client's host"):
        Connection(newer_address(newer.location, spoken=Versions(VERSION - 1, VERSION - 1)), DEADLINE)


@pytest.mark.parametrize("values", [[], ["1"], [99], [VERSION - 1]])
def test_a_version_that_the_broker_does_not_speak_cannot_be_chosen(newer: RunningBroker, values: list[Any]) -> None:
    raw = Raw(newer.location)
    answer = raw.ask(2, "speak", values)
    assert answer[1] is (values == [])
    assert values == [] or raw.answer() is None
    raw.close()


@pytest.mark.parametrize(
    ("own", "told", "version"),
    [
        ((1, 1), None, 1),
        ((1, 2), None, 1),
        ((1, 2), (1, 1), 1),
        ((1, 2), (1, 2), 2),
        ((1, 2), (2, 3), 2),
        ((2, 3), (1, 2), 2),
        ((1, 1), (1, 2, "added"), 1),
    ],
)
def test_the_newest_common_version_is_chosen(own: tuple[int, int], told: Any, version: int) -> None:
    assert chosen_version(Versions(*own), told) == version


@pytest.mark.parametrize(("own", "told", "upgrade"), [((1, 1), (2, 3), "client"), ((3, 3), (1, 2), "broker")])
def test_without_a_common_version_the_older_side_is_to_be_upgraded(
    own: tuple[int, int], told: Any, upgrade: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"on the {upgrade}'s host"):
        chosen_version(Versions(*own), told)


# Errors


@pytest.mark.parametrize(("error", "before"), [(UnknownRequest("fly"), BadRequest), (UnknownQueue("7"), QueueError)])
def test_errors_of_later_are_their_bases_for_clients_of_before(error: EnodeError, before: type[EnodeError]) -> None:
    name, text, details = error_values(error)
    assert name == before.__name__
    assert type(error_of(name, text, details)) is type(error)
    assert type(error_of(name, text, None)) is before


def test_what_a_newer_broker_adds_to_an_error_is_ignored() -> None:
    held = error_of("QueueHeld", "held", ["m", 1.5, "added"], "added")
    assert isinstance(held, QueueHeld)
    assert (held.owner, held.seconds) == ("m", 1.5)
    assert type(error_of("OfTheNextVersion", "text", None)) is QueueError
    for details in (5, {"queue": 7}, [["OfTheNextVersion"]], [{"queue": 7}]):
        assert type(error_of("QueueFull", "text", details)) is QueueFull


def test_the_broker_takes_defaults_for_arguments_of_a_later_version(newer: RunningBroker) -> None:
    with closing(newer.transport()) as transport:
        assert transport.create_topic("t", 1) == 1
        assert transport._call("fly", "home") == "flew to home"
        with pytest.raises(BadRequest, match="takes 3 arguments, got 1"):
            transport._call("create_topic", "t")


def test_todays_versions_are_told(broker: RunningBroker) -> None:
    raw = Raw(broker.location, greet=False)
    welcome = raw.ask(1, "hello", [MAGIC, VERSION, os.urandom(16)])[2]
    assert Versions(*welcome["versions"]) == wire.SPOKEN
    raw.close()
