"""Answers with real processors, without processors, and without a queue."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from enode_django.eventing.registry import subscribers
from enode_django.ids import id_of_key
from sample_project.bank.domain import AccountOpened
from tests.api.calls import Caller, problem
from tests.integration.running import processors, wait_for
from tests.services import REAL_QUEUE
from tests.unit.test_executing import group

OPEN = ("bank.OpenAccount", "a", {"owner": "Ada"})
MEMORY = {"BACKEND": "enode_django.equeue.transports.memory.MemoryTransport"}
NOWHERE = {"BACKEND": "enode_django.equeue.transports.broker.BrokerTransport", "LOCATION": "tcp://127.0.0.1:9"}


@pytest.mark.django_db(transaction=True)
def test_processors_execute_what_was_sent(sender: Caller) -> None:
    with processors(API={"MAX_TIMEOUT": 240.0}), subscribers.only(group("ledger", AccountOpened)):
        first = sender.send(*OPEN, query="?wait=executed&timeout=240", key="k").json()
        assert (first["status"], first["version"]) == ("success", 1)
        assert sender.get("commands/k/").json()["status"] == "success"
        found = wait_for(lambda: _missed(sender))
        assert (found["version"], found["missing"]) == (1, ["ledger"])
        sent = sender.send("bank.Withdraw", "a", {"amount": "1"})
        outcome = wait_for(lambda: _stored(sender, sent["Location"]))
        assert outcome["problem"]["type"] == "urn:problem-type:bank.InsufficientFunds"


def _missed(sender: Caller) -> Any:
    """Return the problem of a timeout, if the command was answered before."""
    found = problem(sender.send(*OPEN, query="?wait=handled&timeout=0.2", key="k"), 504)
    return found if found["stored"] else None


def _stored(sender: Caller, location: str) -> Any:
    response = sender.client.get(location)
    return response.json() if response.status_code == 200 else None


@pytest.mark.django_db(transaction=True)
@override_settings(ENODE={**REAL_QUEUE, "QUEUE": MEMORY})
def test_a_command_that_nobody_executes_in_time_is_said_to_be_on_its_way(sender: Caller) -> None:
    response = sender.send(*OPEN, query="?wait=executed&timeout=0.01", key="k")
    found = problem(response, 504)
    id = found["command_id"]
    assert (found["stored"], found["missing"], id) == (None, [], id_of_key(sender.key, "k"))
    assert sender.client.get(response["Location"]).json() == {"id": id, "status": "pending"}


@pytest.mark.django_db(transaction=True)
@override_settings(ENODE={**REAL_QUEUE, "QUEUE": NOWHERE})
@pytest.mark.parametrize("query", ["", "?wait=executed&timeout=1"])
def test_without_a_queue_the_sender_is_told_to_come_again(sender: Caller, query: str) -> None:
    response = sender.send(*OPEN, query=query)
    assert problem(response, 503)["type"] == "urn:problem-type:enode:unavailable"
    assert int(response["Retry-After"]) > 0
