"""Several secrets, each with roles: a client may make only the requests that the roles of its secret allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from enode_django.conf import conf
from enode_django.equeue.broker.access import Role, Secret, proven
from enode_django.equeue.broker.options import BrokerOptions
from enode_django.equeue.broker.requests import REQUESTS
from enode_django.equeue.messages import Commit
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.broker_address import address_of
from enode_django.equeue.wire import proof
from enode_django.exceptions import ConfigurationError, QueueError, RoleMissing
from enode_django.processors.broker_options import broker_options
from tests.docs.pages import DOCS, rows_by_code
from tests.equeue.brokers import RunningBroker

TEXTS = {"web": "hush one", "worker": "hush two", "operator": "hush three", "everyone": "hush four"}
SECRETS = {
    "web": (TEXTS["web"], ["produce"]),
    "worker": (TEXTS["worker"], ["produce", "consume"]),
    "operator": (TEXTS["operator"], ["administer"]),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    directory = tmp_path_factory.mktemp("guarded") / "data"
    with RunningBroker(directory, secret=TEXTS["everyone"], secrets=SECRETS) as broker:
        with closing(broker.transport(secret=TEXTS["everyone"])) as transport:
            transport.create_topic("t", 1)
            transport.send("t", {0: [b"x"]})
        yield broker
        assert broker.stop() == 0
        assert not any(text in broker.log.read_text() for text in TEXTS.values())


@pytest.fixture
def clients(guarded: RunningBroker) -> Iterator[dict[str, BrokerTransport]]:
    transports = {name: guarded.transport(secret=text) for name, text in TEXTS.items()}
    yield transports
    for transport in transports.values():
        transport.close()


def ask_all(transport: BrokerTransport) -> dict[str, bool]:
    """Make every request without arguments. Return, by request, whether the roles of the secret allow it."""
    return {name: not isinstance(_error_of(transport, name), RoleMissing) for name in REQUESTS}


def _error_of(transport: BrokerTransport, name: str) -> QueueError | None:
    try:
        transport._call(name)
    except QueueError as error:
        return error
    return None


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_lets_ask_for_what_its_roles_allow(clients: dict[str, BrokerTransport], name: str) -> None:
    roles = SECRETS[name][1]
    assert ask_all(clients[name]) == {
        request: needed.role is None or needed.role.value in roles for request, needed in REQUESTS.items()
    }


def test_the_single_secret_has_all_roles(clients: dict[str, BrokerTransport]) -> None:
    assert all(ask_all(clients["everyone"]).values())


def test_a_refused_request_changes_nothing(clients: dict[str, BrokerTransport]) -> None:
    web, worker, operator = clients["web"], clients["worker"], clients["operator"]
    lease = worker.acquire("g", "t", 0, "m", 60.0)
    with pytest.raises(RoleMissing, match="'set_offset' needs the role 'administer', which the secret 'worker'"):
        worker.set_offset("g", "t", 0, 1)
    with pytest.raises(RoleMissing, match="'commit' needs the role 'consume', which the secret 'web'"):
        web.commit("g", "t", {0: Commit(lease.epoch, 1)})
    with pytest.raises(RoleMissing, match="'send' needs the role 'produce', which the secret 'operator'"):
        operator.send("t", {0: [b"forged"]})
    assert (worker.committed("g", "t"), worker.end_offsets("t")) == ({0: 0}, {0: 1})
    assert worker.commit("g", "t", {0: Commit(lease.epoch, 1)}) == set()
    worker.release("g", "t", "m", {0: lease.epoch})
    operator.set_offset("g", "t", 0, 0)
    assert web.committed("g", "t") == {0: 0}


def test_a_producer_needs_no_other_role(clients: dict[str, BrokerTransport]) -> None:
    assert Producer(clients["web"], queues=2).send("made", "key", b"x").offset == 0
    inbox = clients["web"].open_inbox()
    clients["worker"].reply([(inbox.address, b"answer")])
    assert inbox.receive(0) == [b"answer"]
    inbox.close()


def test_a_connection_goes_on_after_a_refused_request(clients: dict[str, BrokerTransport]) -> None:
    with pytest.raises(RoleMissing):
        clients["web"].pull("t", {0: 0}, limit=1, wait=0)
    (connection,) = clients["web"]._pool._idle
    assert "t" in clients["web"].topics()
    assert clients["web"]._pool._idle == [connection]


def test_another_secret_is_refused(guarded: RunningBroker) -> None:
    with closing(guarded.transport(secret="hush")) as transport, pytest.raises(ConfigurationError, match="not take"):
        transport.topics()


# Secrets as values


def secret(name: str, text: str, *roles: Role) -> Secret:
    return Secret(name=name, text=text, roles=frozenset(roles or Role))


def test_the_secret_that_was_proven_is_found_wherever_it_stands() -> None:
    secrets = [secret("one", "1"), secret("two", "2"), secret("three", "3")]
    nonces = b"first", b"second"
    for each in secrets:
        assert proven(secrets, proof(each.text, "client", *nonces), nonces) == each
    assert proven(secrets, proof("4", "client", *nonces), nonces) is None
    assert proven(secrets, proof("1", "broker", *nonces), nonces) is None
    assert proven(secrets, None, nonces) is None


@override_settings(
    ENODE={
        "QUEUE": {"OPTIONS": {"secret": "hush"}},
        "BROKER": {"SECRET": "hush", "SECRETS": {"web": {"SECRET": "hush too", "ROLES": ["produce"]}}},
    }
)
def test_no_repr_shows_a_secret() -> None:
    options = broker_options(conf())
    shown = f"{options!r} {options.all_secrets!r} {conf()!r} {address_of('tcp://127.0.0.1', 'hush', None)!r}"
    assert "web" in shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    "given", [{"text": ""}, {"text": 5}, {"text": "hush", "roles": frozenset()}, {"text": "x", "roles": {"fly"}}]
)
def test_a_secret_without_text_or_known_roles_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'web'") as caught:
        Secret(name="web", **given)
    assert "hush" not in str(caught.value)


def test_two_secrets_with_one_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'SECRET' and 'web' have the same text") as caught:
        BrokerOptions(directory=Path("x"), secret="hush", secrets=(secret("web", "hush"),))
    assert "hush" not in str(caught.value)


# The page


def test_the_role_of_every_request_is_documented() -> None:
    rows = rows_by_code(DOCS / "reference" / "broker-protocol.md")
    documented = {name: found[0][1].strip("`") for name, found in rows.items() if name in REQUESTS}
    assert documented == {name: "any" if each.role is None else each.role.value for name, each in REQUESTS.items()}
