"""The outbox in tests of applications: `inline` executes commands when the atomic block commits."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase

from enode_django import metadata, send_command, send_commands
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.models import OutboxCommand
from enode_django.testing import inline
from tests.immediate.domain import Fill, Full


class InlineTests(TestCase):
    def test_commands_wait_for_the_end_of_the_block(self) -> None:
        with inline(followed_by=[]) as bus:
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                with metadata(user_id="7"):
                    send_command(Fill("a"), outbox=True)
                    send_commands([(Fill("a"), 5)], outbox=True)
                assert bus.results == []
            assert [result.version for result in bus.results] == [1, None]
            assert "VersionMismatch" in (bus.results[1].error_type or "")
            assert bus.events[0].metadata.user_id == "7"
        assert OutboxCommand.objects.count() == 0

    def test_a_rollback_takes_them_along(self) -> None:
        with inline(followed_by=[]) as bus, self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            send_command(Fill("a"), outbox=True)
            transaction.set_rollback(True)
        assert bus.results == []


def test_without_a_database_they_are_executed_at_once() -> None:
    with inline(MemoryEventStore()) as bus:
        send_command(Fill("a", amount=101), outbox=True)
    assert isinstance(bus.results[0].error, Full)
