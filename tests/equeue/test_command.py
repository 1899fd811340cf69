"""``manage.py enode queue``."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.messages import Commit
from enode_django.equeue.producer import Producer
from enode_django.equeue.subscribing import RetryPolicy
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.management.tables import preview
from tests import warm
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.consuming import Handled, consuming, eventually, texts
from tests.meta.tree import ROOT

pytestmark = pytest.mark.django_db  # each action goes to the audit trail

_memory: MemoryTransport | None = None


def shared_memory(location: str) -> MemoryTransport:
    assert _memory is not None
    return _memory


@pytest.fixture
def queue(memory: MemoryTransport) -> Iterator[MemoryTransport]:
    """The transport that the settings name in this test."""
    global _memory
    _memory = memory
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.shared_memory", "QUEUES_PER_TOPIC": 3}}):
        yield memory
    _memory = None


def equeue(*arguments: str) -> str:
    out = StringIO()
    call_command("enode", "queue", *arguments, stdout=out)
    return out.getvalue()


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in equeue(*arguments, "--json").splitlines()]


def test_topics_are_created_and_shown(queue: MemoryTransport) -> None:
    queue.send("orders", {1: texts("a", "b")})
    assert equeue("topics").splitlines() == [
        "topic   queue  first  end  messages  producers see it  consumers see it",
        "orders  0      0      0    0         yes               yes",
        "orders  1      0      2    2         yes               yes",
    ]
    assert [row["queue"] for row in rows("create", "payments")] == [0, 1, 2]
    assert [row["topic"] for row in rows("topics", "payments")] == ["payments"] * 3
    with pytest.raises(CommandError, match="exists, with 2 queues"):
        equeue("create", "orders", "--queues", "5")
    with pytest.raises(CommandError, match="cannot name a topic"):
        equeue("create", "or ders")
    with pytest.raises(CommandError, match=r"create it: .* manage\.py enode queue create"):
        equeue("topics", "others")


def test_queues_are_added_and_hidden_only_when_no_key_can_overtake(queue: MemoryTransport) -> None:
    queue.send("orders", {1: texts("a")})
    with pytest.raises(CommandError, match=r"has 1 messages .* --unordered"):
        equeue("add-queues", "orders", "4")
    assert len(rows("add-queues", "orders", "4", "--unordered")) == 4
    assert len(rows("add-queues", "orders", "4")) == 4, "again"
    with pytest.raises(CommandError, match=r"'orders' has 4 queues, .* hide those above 3"):
        equeue("add-queues", "orders", "3")
    with pytest.raises(CommandError, match="--unordered"):
        equeue("hide", "orders", "3")
    hidden = rows("hide", "orders", "3", "--unordered")[3]
    assert (hidden["producers_see_it"], hidden["consumers_see_it"]) == (False, False)
    half = rows("show", "orders", "3", "--only", "consumers")[3]
    assert (half["producers_see_it"], half["consumers_see_it"]) == (False, True)
    with pytest.raises(CommandError, match="no queue 9"):
        equeue("hide", "orders", "9", "--only", "consumers")


def test_groups_and_offsets_are_shown(queue: MemoryTransport) -> None:
    assert equeue("groups").strip() == "no groups"
    queue.send("orders", {0: texts("a", "b")})
    queue.join("billing", "orders", "one", 60)
    lease = queue.acquire("billing", "orders", 0, "one", 60)
    queue.commit("billing", "orders", {0: Commit(lease.epoch, 1)})
    (group,) = rows("groups")
    assert group == {
        **{"topic": "orders", "group": "billing", "division": 1},
        **{"members": ["one"], "backlog": 1, "counts": True, "paused": False},
    }
    first, second = rows("offsets", "billing")
    assert 0 < first.pop("seconds_left") <= 60
    assert first == {
        **{"topic": "orders", "queue": 0, "committed": 1, "end": 2},
        **{"backlog": 1, "owner": "one", "assigned_to": "one"},
    }
    assert (second["committed"], second["owner"]) == (None, None)
    assert equeue("offsets", "billing").splitlines()[2].split() == ["orders", "1", "0", "0", "one"]
    assert "has nothing" in equeue("offsets", "another")


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str]) -> None:
    monkeypatch.setattr("builtins.input", answer)


def test_offsets_are_set_when_somebody_says_yes(queue: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.send("orders", {0: texts("a", "b")})
    queue.acquire("billing", "orders", 0, "one", 60)
    answering(monkeypatch, lambda question: "no" if "billing goes on from last in orders" in question else "")
    with pytest.raises(CommandError, match="nothing was changed"):
        equeue("set-offset", "billing", "orders", "last")
    assert queue.committed("billing", "orders")[0] == 0
    answering(monkeypatch, lambda question: "yes")
    equeue("set-offset", "billing", "orders", "1", "--queue", "0")
    assert queue.committed("billing", "orders")[0] == 1
    assert rows("set-offset", "billing", "orders", "last", "--yes") == [
        {"topic": "orders", "queue": 0, "before": 1, "after": 2},
        {"topic": "orders", "queue": 1, "before": None, "after": 0},
    ]
    equeue("set-offset", "billing", "orders", "2020-01-31T12:00", "--yes")
    assert queue.committed("billing", "orders")[0] == 0
    with pytest.raises(CommandError, match="no group 'biling'"):
        equeue("set-offset", "biling", "orders", "last", "--yes")
    with pytest.raises(CommandError, match="'soon' is not an offset, a time"):
        equeue("set-offset", "billing", "orders", "soon", "--yes")


def test_who_cannot_be_asked_is_told(queue: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(CommandError, match="say --yes"):
        equeue("delete-group", "billing")


def test_group_is_deleted(queue: MemoryTransport) -> None:
    queue.join("billing", "orders", "one", 60)
    with pytest.raises(CommandError, match="has members: one"):
        equeue("delete-group", "billing", "--yes")
    assert rows("delete-group", "billing", "--yes", "--living") == [{"topic": "orders", "group": "billing"}]
    assert equeue("delete-group", "billing", "--yes").strip() == "no topic has that group"


def test_a_group_is_paused_and_resumed(queue: MemoryTransport) -> None:
    queue.create_topic("payments", 1)
    for topic in ("orders", "payments"):
        queue.join("billing", topic, "one", 60)
    assert rows("pause", "billing", "orders") == [{"topic": "orders", "group": "billing", "paused": True}]
    assert [row["paused"] for row in rows("groups")] == [True, False]
    assert [row["topic"] for row in rows("pause", "billing")] == ["orders", "payments"]
    assert [row["paused"] for row in rows("resume", "billing")] == [False, False]
    assert [row["paused"] for row in rows("groups")] == [False, False]
    with pytest.raises(CommandError, match="no topic has a group 'biling'"):
        equeue("pause", "biling")


def test_topic_is_deleted(queue: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.send("orders", {0: [b"a"]})
    monkeypatch.setattr("sys.stdin", StringIO("no"))
    with pytest.raises(CommandError, match="nothing was changed"):
        equeue("delete-topic", "orders")
    with pytest.raises(CommandError, match="in use: no group consumes its 1 messages"):
        equeue("delete-topic", "orders", "--yes")
    assert rows("delete-topic", "orders", "--yes", "--force") == [{"topic": "orders"}]
    with pytest.raises(CommandError, match="was deleted"):
        equeue("delete-topic", "orders", "--yes")
    assert equeue("topics").strip() == "no topics"


def test_a_hidden_queue_is_deleted(queue: MemoryTransport) -> None:
    queue.send("orders", {0: [b"a"]})
    with pytest.raises(CommandError, match="queue 0 of topic 'orders' is seen by producers and consumers; hide it"):
        equeue("delete-queue", "orders", "0", "--yes")
    equeue("hide", "orders", "0", "--unordered")
    with pytest.raises(CommandError, match="in use: no group consumes its 1 messages"):
        equeue("delete-queue", "orders", "0", "--yes")
    shown = rows("delete-queue", "orders", "0", "--yes", "--force")
    assert (shown[0]["queue"], shown[0]["first"], shown[0]["end"]) == (0, 1, 1)


def test_messages_are_shown(queue: MemoryTransport) -> None:
    queue.send("orders", {0: [b"first", b"\xff\x00", "caf\u00e9".encode()]})
    assert equeue("peek", "orders", "0", "--offset", "1").splitlines() == [
        "queue  offset  size  body",
        r"0      1       2     \xff\x00",
        "0      2       5     café",
    ]
    assert rows("peek", "orders", "0", "--limit", "2") == [
        {"queue": 0, "offset": 1, "size": 2, "body_base64": "/wA="},
        {"queue": 0, "offset": 2, "size": 5, "body": "café"},
    ]
    assert [row["offset"] for row in rows("peek", "orders", "0", "--at", "2020-01-31T12:00")] == [0, 1, 2]
    assert equeue("peek", "orders", "0", "--at", "2999-01-31T12:00").strip() == "no messages there"
    with pytest.raises(CommandError, match="'soon' is not a time"):
        equeue("peek", "orders", "0", "--at", "soon")
    assert equeue("peek", "orders", "1").strip() == "no messages there"
    with pytest.raises(CommandError, match="no queue 2"):
        equeue("peek", "orders", "2")


class UntilCtrlC(StringIO):
    """Raises `KeyboardInterrupt`, once, when the second message was written."""

    def __init__(self) -> None:
        super().__init__()
        self._is_interrupted = False

    def flush(self) -> None:
        if "b" in self.getvalue().split()[-1] and not self._is_interrupted:
            self._is_interrupted = True
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["queue  offset  size  body", "0      0       1     a", "0      1       1     b"]),
        (["--json"], [f'{{"queue": 0, "offset": {n}, "size": 1, "body": "{body}"}}' for n, body in enumerate("ab")]),
    ],
)
def test_tail_shows_messages_until_ctrl_c(queue: MemoryTransport, options: list[str], shown: list[str]) -> None:
    queue.send("orders", {0: texts("a", "b")})
    out = UntilCtrlC()
    call_command("enode", "queue", "tail", "orders", "--from-first", *options, stdout=out)
    assert out.getvalue().splitlines() == shown


def test_another_action_that_is_interrupted_has_not_succeeded(queue: MemoryTransport) -> None:
    queue.send("orders", {0: texts("a", "b")})
    with pytest.raises(KeyboardInterrupt):
        call_command("enode", "queue", "peek", "orders", "0", "--json", stdout=UntilCtrlC())


class UntilClosed(StringIO):
    """Raises `BrokenPipeError` when the second message was written, as a pipe to ``head -1`` does."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def flush(self) -> None:
        if "b" in self.getvalue().split()[-1]:
            raise BrokenPipeError

    def fileno(self) -> int:
        return self._descriptor


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_tail_ends_when_its_reader_has_ended(queue: MemoryTransport, options: list[str]) -> None:
    queue.send("orders", {0: texts("a", "b", "c")})
    with TemporaryFile() as file:
        out = UntilClosed(file.fileno())
        call_command("enode", "queue", "tail", "orders", "--from-first", *options, stdout=out)
    assert out.getvalue().splitlines()[-1].split()[-1].strip('"}') == "b"


def test_producers_are_shown(queue: MemoryTransport) -> None:
    assert equeue("producers").strip() == "no process has sent anything lately"
    Producer(queue).send("orders", "ada", b"3 apples")
    (row,) = rows("producers", "orders")
    assert (row["topic"], row["producer"]) == ("orders", f"{socket.gethostname()}-{os.getpid()}")
    assert row["seconds_ago"] < 60
    with pytest.raises(CommandError, match="'nowhere'"):
        equeue("producers", "nowhere")


def test_a_queue_without_a_broker_has_no_figures_of_one(queue: MemoryTransport) -> None:
    with pytest.raises(CommandError, match="its driver is MemoryTransport"):
        equeue("broker")


def test_dead_letters_are_discarded_for_good(queue: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.create_topic("dead.billing", 1)
    queue.send("dead.billing", {0: texts("no letter", "nor this")})
    with pytest.raises(CommandError, match="name letters"):
        equeue("discard", "billing", "--yes")
    monkeypatch.setattr("builtins.input", lambda prompt: "no")
    with pytest.raises(CommandError, match="nothing was changed"):
        equeue("discard", "billing", "0")
    assert rows("discard", "billing", "0", "--yes") == [{"group": "billing", "offset_discarded": 0}]
    assert [row["offset"] for row in rows("dead-letters", "billing")] == [1]
    assert "\nrequeue: the group that sends" in equeue("groups"), "the group is not one of theirs"
    assert rows("discard", "billing", "--all", "--yes") == [{"group": "billing", "offset_discarded": 1}]
    assert equeue("discard", "billing", "--all", "--yes").strip() == "nothing to discard"


def test_dead_letters_are_shown_and_sent_anew(queue: MemoryTransport) -> None:
    assert equeue("dead-letters").strip() == "no dead letters"
    queue.send("orders", {0: texts("good", "bad")})
    before = datetime.now(UTC)
    with consuming(queue, Handled(bad=-1), retry=RetryPolicy(delays=())):
        eventually(lambda: queue.committed("billing", "orders")[0] == 2)
    assert rows("dead-letters") == [{"group": "billing", "dead_letters": 1}]
    (letter,) = rows("dead-letters", "billing")
    assert before <= datetime.fromisoformat(letter.pop("failed_at")) <= datetime.now(UTC)
    assert letter == {
        **{"offset": 0, "topic": "orders", "queue": 0, "message": 1, "attempts": 1},
        **{"error": "ValueError: cannot handle b'bad'", "body": "bad"},
    }
    assert "ValueError: cannot handle b'bad'  bad" in equeue("dead-letters", "billing")
    for wrong in ([], ["0", "--all"]):
        with pytest.raises(CommandError, match="name letters"):
            equeue("requeue", "billing", *wrong)
    with pytest.raises(CommandError, match="no dead letter at 5"):
        equeue("requeue", "billing", "5")
    assert rows("requeue", "billing", "0") == [{"group": "billing", "offset_sent_anew": 0}]
    assert equeue("requeue", "billing", "--all").strip() == "nothing to send again"
    with pytest.raises(CommandError, match="group 'another' never had a dead letter"):
        equeue("dead-letters", "another")


@given(st.binary(max_size=300), st.integers(1, 80))
def test_preview_is_printable_and_short(body: bytes, width: int) -> None:
    shown = preview(body, width)
    assert shown.isprintable()
    assert len(shown) <= width


def test_who_reads_no_further_ends_it_without_a_complaint(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        transport = broker.transport()
        transport.create_topic("orders", 2_000)  # more lines than a pipe holds
        transport.close()
        environment = {**os.environ, "QUEUE_URL": broker.location}
        shown = warm.run(["manage.py", "enode", "queue", "broker", "--json"], cwd=ROOT, env=environment).stdout
        assert json.loads(shown.splitlines()[0]) == {"figure": "run", "value": 1}
        with open(tmp_path / "complaints", "w") as complaints:
            reading = warm.start(
                ["manage.py", "enode", "queue", "topics"], cwd=ROOT, env=environment, stderr=complaints
            )
            assert reading.stdout is not None
            assert reading.stdout.readline().startswith("topic")
            reading.stdout.close()
            assert reading.wait(DEADLINE) == 0
            assert (tmp_path / "complaints").read_text() == ""


def test_retention_of_a_topic_is_shown_and_set(queue: MemoryTransport) -> None:
    assert rows("retention", "orders") == [{"topic": "orders", "seconds": None}]
    assert rows("retention", "orders", "3600") == [{"topic": "orders", "seconds": 3600.0}]
    assert queue.retention("orders") == 3_600
    assert rows("retention", "orders", "default") == [{"topic": "orders", "seconds": None}]
    for wrong in ("soon", "-1", "inf"):
        with pytest.raises(CommandError, match="seconds"):
            equeue("retention", "orders", "--", wrong)
