"""``manage.py enode queue`` and the dead letters of commands, which are in the event store's database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.dead_letters import DeadLetter, PostgresDeadLetters, key_of
from enode_django.models import DeadLetter as Row
from enode_django.monitoring.work import ask_letters
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db

_memory: MemoryTransport | None = None


def shared_memory(location: str) -> MemoryTransport:
    assert _memory is not None
    return _memory


@pytest.fixture
def queue(memory: MemoryTransport) -> Iterator[MemoryTransport]:
    """The transport that the settings name in this test."""
    global _memory
    _memory = memory
    memory.create_topic("commands", 1)
    with override_settings(
        ENODE={**REAL_QUEUE, "QUEUE": {"BACKEND": f"{__name__}.shared_memory", "QUEUES_PER_TOPIC": 1}}
    ):
        yield memory
    _memory = None


def letter(id: str, type: str = "bank.Deposit", error: str = "KeyError", body: bytes = b"body") -> DeadLetter:
    text = f"Traceback (most recent call last):\n{error}: of {id}"
    return DeadLetter(key_of(id, "ada", body), id, "ada", type, "commands", 0, 7, error, text, body, False)


@pytest.fixture
def letters() -> None:
    deposits = [letter("c1"), letter("c2"), letter("c2"), letter("c3", error="TypeError")]
    for one in [*deposits, letter("c4", "bank.Withdraw"), letter("", "", "MalformedMessage", b"garbage")]:
        PostgresDeadLetters().keep([one])


def equeue(*arguments: str) -> str:
    out = StringIO()
    call_command("enode", "queue", *arguments, stdout=out)
    return out.getvalue()


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in equeue(*arguments, "--json").splitlines()]


def sent(queue: MemoryTransport) -> int:
    return queue.end_offsets("commands")[0]


def test_letters_of_the_workers_and_of_consumers_are_listed_together(queue: MemoryTransport, letters: None) -> None:
    queue.create_topic("dead.billing", 1)
    queue.send("dead.billing", {0: [b"by somebody else"]})
    assert rows("dead-letters") == [
        {"group": "processors", "dead_letters": 5},
        {"group": "billing", "dead_letters": 1},
    ]


def test_letters_of_commands_are_shown_with_their_errors(queue: MemoryTransport, letters: None) -> None:
    found = rows("dead-letters", "processors")
    assert [row["letter"] for row in found[:4]] == ["c1", "c2", "c3", "c4"]
    first, second = found[:2]
    assert (first["type"], first["aggregate"], first["error"], first["attempts"]) == (
        "bank.Deposit",
        "ada",
        "KeyError",
        1,
    )
    assert (first["text"], first["stored"]) == ("KeyError: of c1", False)
    assert second["attempts"] == 2
    assert [row["letter"] for row in rows("dead-letters", "processors", "--type", "bank.Withdraw")] == ["c4"]
    assert len(rows("dead-letters", "processors", "--error", "KeyError", "--limit", "2")) == 2


def test_letters_are_sent_again_singly_of_a_kind_or_all(queue: MemoryTransport, letters: None) -> None:
    assert rows("requeue", "processors", "c1") == [{"group": "processors", "sent_anew": 1}]
    assert rows("requeue", "processors", "--type", "bank.Deposit", "--error", "KeyError") == [
        {"group": "processors", "sent_anew": 1}
    ]
    assert sent(queue) == 2
    with pytest.raises(CommandError, match="no dead letter of a command has the name 'c1'"):
        equeue("requeue", "processors", "c1")
    with pytest.raises(CommandError, match="name letters"):
        equeue("requeue", "processors")
    assert rows("requeue", "processors", "--all") == [{"group": "processors", "sent_anew": 3}]
    assert (sent(queue), Row.objects.count()) == (5, 0)
    assert equeue("dead-letters").strip() == "no dead letters"


def test_letters_are_discarded_by_their_names(queue: MemoryTransport, letters: None) -> None:
    garbage = rows("dead-letters", "processors")[-1]["letter"]
    assert rows("discard", "processors", garbage, "c4", "--yes") == [{"group": "processors", "discarded": 2}]
    assert sent(queue) == 0
    assert [row["letter"] for row in rows("dead-letters", "processors")] == ["c1", "c2", "c3"]


def test_kinds_are_of_commands_only(queue: MemoryTransport) -> None:
    queue.create_topic("dead.billing", 1)
    with pytest.raises(CommandError, match="--type and --error"):
        equeue("requeue", "billing", "--type", "bank.Deposit")
    with pytest.raises(CommandError, match="'c1' is not a number"):
        equeue("requeue", "billing", "c1")


def test_status_tells_of_letters_by_kind(queue: MemoryTransport, letters: None) -> None:
    finding = ask_letters("default")
    assert [(row.command_type, row.error_type, row.letters) for row in finding.rows] == [
        ("", "MalformedMessage", 1),
        ("bank.Deposit", "KeyError", 2),
        ("bank.Deposit", "TypeError", 1),
        ("bank.Withdraw", "KeyError", 1),
    ]
    (problem,) = finding.problems
    assert "5 dead letters of commands" in problem.reason
    assert "manage.py enode queue dead-letters processors" in problem.reason
    Row.objects.all().delete()
    assert ask_letters("default").problems == []


def test_what_a_message_says_does_not_control_the_terminal(queue: MemoryTransport) -> None:
    PostgresDeadLetters().keep([letter("c1\x1b[2J", "a\nb")])
    shown = equeue("dead-letters", "processors")
    assert "c1\\x1b[2J" in shown
    assert "a\\nb" in shown
    assert "\x1b" not in shown


def test_a_type_without_letters_is_answered_with_those_that_there_are(queue: MemoryTransport, letters: None) -> None:
    for action in (["requeue"], ["discard", "--yes"], ["dead-letters"]):
        said = equeue(action[0], "processors", "--type", "bank.Depsit", *action[1:])
        assert said.strip().endswith("; there are letters of bank.Deposit, bank.Withdraw"), action
    Row.objects.all().delete()
    assert equeue("requeue", "processors", "--type", "bank.Depsit").strip() == "nothing to send again"


def test_at_most_ten_types_are_named(queue: MemoryTransport) -> None:
    for number in range(12):
        PostgresDeadLetters().keep([letter(f"c{number}", f"bank.T{number:02}")])
    said = equeue("requeue", "processors", "--type", "bank.Depsit").strip()
    assert said.endswith("bank.T08, bank.T09, …")
