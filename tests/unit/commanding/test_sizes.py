"""An outcome too large for a message of the queue is refused when the command is decided, with a clear error."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import Add, AddSoftly, AddText, Create, Tell
from tests.races.harness import Worker

LIMIT = 400


def answer(command: Command, *, metadata: bytes = b"") -> CommandResult:
    worker = Worker(MemoryEventStore(), max_bytes=LIMIT)
    worker.send(Create("x"))
    (envelope,) = worker.send(command)
    envelope.metadata = metadata
    worker.settle()
    return worker.answers[command.id]


def test_a_result_without_events_that_is_too_large_fails_the_command() -> None:
    assert answer(Tell("x", characters=LIMIT - 10)).value == "x" * (LIMIT - 10)
    refused = answer(Tell("x", characters=LIMIT))
    assert (refused.status, refused.error_type) == (CommandStatus.FAILED, "MessageTooLarge")
    assert "result" in refused.error_message
    assert f"more than the {LIMIT}" in refused.error_message


def test_metadata_counts_beside_the_events() -> None:
    text = AddText("x", text="x" * (LIMIT // 2))
    assert answer(text).status is CommandStatus.SUCCESS
    refused = answer(text, metadata=bytes(LIMIT // 2))
    assert (refused.status, refused.error_type) == (CommandStatus.FAILED, "MessageTooLarge")


def test_what_was_refused_for_its_size_has_changed_nothing() -> None:
    worker = Worker(MemoryEventStore(), max_bytes=LIMIT)
    too_large = AddText("x", text="x" * LIMIT)
    last = Add("x", amount=5)
    worker.send(Create("x"), too_large, AddSoftly("x", limit=0), last)
    worker.settle()
    assert worker.answers[too_large.id].error_type == "MessageTooLarge"
    assert worker.answers[last.id].value == 5


def test_handling_leaves_off_when_there_is_enough_to_store() -> None:
    worker = Worker(MemoryEventStore(), max_bytes=LIMIT)
    worker.send(Create("x"))
    worker.settle()
    envelopes = worker.send(*[AddText("x", text="x" * 100) for _ in range(10)])
    entries = worker.processor.handle(envelopes, 300)
    assert [entry.record.version for entry in entries if entry.record is not None] == [2, 3, 4]
    rest = worker.processor.handle(envelopes[len(entries) :])
    assert [entry.record.version for entry in rest if entry.record is not None] == list(range(5, 12))


def test_a_mistake_whose_crash_is_too_large_for_its_process_manager_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker(MemoryEventStore(), max_bytes=LIMIT)
    (envelope,) = worker.send(Add("missing", amount=1))
    envelope.crash_handler, envelope.body = "some.process", bytes(LIMIT)
    worker.settle()
    assert "cannot be told to some.process" in caplog.text
    assert caplog.text.count(f"{envelope.id!r} failed") == 1
