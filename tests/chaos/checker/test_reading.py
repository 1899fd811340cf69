"""Readers handle the files that killed processes leave, and damaged files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaos.checker.__main__ import main
from chaos.checker.decoding import Undecodable, read_command_key, read_contents, read_published
from chaos.checker.facts import Answer, Appended, Committed, Sample, Send
from chaos.checker.reading.broker_log import read_broker_log
from chaos.checker.reading.clients import read_clients, read_handled, read_samples
from chaos.checker.reading.problems import Problems
from chaos.checker.reading.queue import Topics
from enode_django.bus.messages import encode_published
from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Commit
from enode_django.equeue.records import encode_records
from enode_django.eventstore.base import StreamRecord
from enode_django.serialization.plain import pack

PRODUCER = bytes(range(16))


def write_lines(path: Path, *lines: object, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return path


SEND = {
    "what": "send",
    "command": {"id": "c1", "type": "bank.Deposit", "aggregate_root_id": "a", "fields": {"amount": 5}},
}
ANSWER = {"what": "answer", "id": "c1", "aggregate_root_id": "a", "status": "success", "version": 2, "value": "5"}


def test_a_command_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    write_lines(tmp_path / "one.jsonl", SEND, {"what": "no answer", "id": "c1", "error": "timeout"}, SEND, ANSWER)
    write_lines(tmp_path / "two.jsonl", {"what": "sent", "ids": ["c1"]})
    problems = Problems()
    logs = read_clients(tmp_path, problems)
    assert logs.sends == [Send("c1", "a", "bank.Deposit", {"amount": "5"})]
    assert logs.answers == [Answer("c1", "a", "SUCCESS", 2, "5")]
    assert logs.acknowledged == {"c1"}
    assert problems == []


def test_the_torn_last_line_of_a_killed_client_is_passed_over(tmp_path: Path) -> None:
    write_lines(tmp_path / "one.jsonl", SEND, end='\n{"what": "answer", "id": "c')
    problems = Problems()
    assert read_clients(tmp_path, problems).answers == []
    assert problems == []


@pytest.mark.parametrize("line", ["{torn", "7", '{"what": "answer"}', '{"at": 1}', '{"what": "sent", "ids": 7}'])
def test_a_line_that_is_none_is_told_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "one.jsonl").write_text(f"{json.dumps(SEND)}\n{line}\n{json.dumps(ANSWER)}\n")
    problems = Problems()
    assert len(read_clients(tmp_path, problems).answers) == 1
    (problem,) = problems
    assert problem.rule == "unreadable"
    assert "one.jsonl line 2" in problem.text


def test_lines_of_subscribers_and_of_the_watcher(tmp_path: Path) -> None:
    handled = {"at": 1.5, "subscriber": "s", "aggregate_root_id": "a", "version": 1, "event_id": "a/1/0", "type": "X"}
    sample = {"at": 2.5, "group": "g", "topic": "t", "queue": 0, "committed": 7, "owner": None, "epoch": 0}
    problems = Problems()
    write_lines(tmp_path / "s-7.jsonl", handled)
    (found,) = read_handled(tmp_path, problems)
    assert (found.at, found.event_id) == (1.5, "a/1/0")
    assert read_samples(write_lines(tmp_path / "offsets.jsonl", sample), problems) == [Sample(2.5, ("g", "t", 0), 7)]
    assert read_samples(tmp_path / "nowhere.jsonl", problems) == []
    assert problems == []


# -- the broker's files -------------------------------------------------------------------------------------------


def fill(directory: Path) -> None:
    """Write two sends, one of them with two parts, and the commits of a group, over several files."""
    store = MessageStore(directory, chunk_size=4096)
    state = BrokerState(store, patience=1)
    state.open()
    state.create_topic("commands", 2)
    bodies = [encode_records([b"x" * 900, b"y" * 900]), encode_records([b"z" * 1500])]
    store.append("commands", [NewBatch(0, 2, bodies[0])], producer=PRODUCER, sequence=1)
    store.append("commands", [NewBatch(0, 2, bodies[0]), NewBatch(1, 1, bodies[1])], producer=PRODUCER, sequence=2)
    lease = state.acquire("processors", "commands", 0, "worker", 5.0, 0)
    assert not state.commit("processors", "commands", {0: Commit(lease.epoch, 4)})
    state.set_offset("processors", "commands", 0, 1)
    store.close(state.plain())


def test_the_brokers_log_is_read_to_its_end(tmp_path: Path) -> None:
    fill(tmp_path)
    problems = Problems()
    found = read_broker_log(tmp_path, Topics(), problems)
    assert problems == []
    assert found.is_whole
    batches = [record for record in found.log if isinstance(record, Appended)]
    assert [(b.queue, b.first_offset, b.count, b.sequence, b.part, b.parts) for b in batches] == [
        (0, 0, 2, 1, 0, 1),
        (0, 2, 2, 2, 0, 2),
        (1, 0, 1, 2, 1, 2),
    ]
    assert [type(record).__name__ for record in found.log[3:]] == ["Acquired", "Committed", "OffsetSet"]
    commit = found.log[4]
    assert isinstance(commit, Committed)
    assert (commit.consumption, commit.offset) == (("processors", "commands", 0), 4)


def test_a_log_whose_first_file_is_deleted_is_not_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    first, *others = sorted((tmp_path / "messages").glob("*.chunk"))
    assert others
    first.unlink()
    assert not read_broker_log(tmp_path, Topics(), Problems()).is_whole


def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path) -> None:
    fill(tmp_path)
    path = min((tmp_path / "messages").glob("*.chunk"))
    content = bytearray(path.read_bytes())
    place = content.find(b"x" * 900)
    content[place] ^= 1
    path.write_bytes(content)
    problems = Problems()
    found = read_broker_log(tmp_path, Topics(), problems)
    assert len([record for record in found.log if isinstance(record, Appended)]) == 2
    (problem,) = problems
    assert path.name in problem.text


def test_the_torn_end_of_a_killed_broker_is_no_damage(tmp_path: Path) -> None:
    fill(tmp_path)
    path = max((tmp_path / "messages").glob("*.chunk"))
    path.write_bytes(path.read_bytes()[:-9] + bytes(100))
    problems = Problems()
    read_broker_log(tmp_path, Topics(), problems)
    assert problems == []


def test_a_directory_without_a_log_is_told(tmp_path: Path) -> None:
    problems = Problems()
    read_broker_log(tmp_path, Topics(), problems)
    assert len(problems) == 1


@pytest.mark.parametrize("read", [read_contents, read_published, read_command_key])
@pytest.mark.parametrize("body", [b"", b"\x01", b"\xc1", b"\x01\x90", b"\x02\x94\x01\x01\x01\x01", b"\x93\x01\x02\x03"])
def test_wrong_bytes_raise_one_error(read: object, body: bytes) -> None:
    assert callable(read)
    with pytest.raises(Undecodable):
        read(body)


def test_a_stream_that_was_published_after_a_failover_names_its_generation() -> None:
    record = StreamRecord("a", 3, "c", "bank.BankAccount", "bank.Deposit", datetime.now(UTC), b"events", b"metadata")
    first, second = (read_published(encode_published(record, "", generation)) for generation in (0, 2))
    assert first == second
    assert (first.aggregate_root_id, first.version) == ("a", 3)


@pytest.mark.parametrize("rest", [[0], [1, 1], ["1"]])
def test_what_ends_otherwise_is_no_stream(rest: list[object]) -> None:
    fields = [1, "bank.BankAccount", "a", 3, "c", "bank.Deposit", datetime.now(UTC), b"", b"", "", *rest]
    with pytest.raises(Undecodable, match="is not a generation"):
        read_published(pack(fields))


# -- the command --------------------------------------------------------------------------------------------------


def test_a_directory_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    (tmp_path / "run.json").write_text('{"shards": []}')
    assert main([str(tmp_path)]) == 2
    assert "queue" in capsys.readouterr().err


def test_databases_that_are_away_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "queue")
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1"
    queue = {"kind": "broker", "directory": str(tmp_path / "queue")}
    run = {"read_database": nowhere, "shards": [nowhere], "queue": queue, "finished": True}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN unreadable (3 times)" in printed
    assert "Traceback" not in printed
