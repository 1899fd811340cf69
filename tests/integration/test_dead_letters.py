"""Commands that an exception ends while nobody waits: they are kept, and take effect once when they are sent again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from enode_django import CommandStatus, execute_command, send_command
from enode_django.conf import conf
from enode_django.models import DeadLetter
from tests.integration.notebook import Count, CreateNote, RaiseInHandler
from tests.integration.running import Processors, processors, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(redis_url: str) -> Iterator[Processors]:
    with processors() as running:
        yield running


@pytest.fixture
def note(running: Processors) -> str:
    id = f"note-{uuid.uuid4().hex}"
    assert execute_command(CreateNote(aggregate_root_id=id)).status is CommandStatus.SUCCESS
    return id


def letter_of(id: str) -> DeadLetter:
    found: DeadLetter = wait_for(lambda: DeadLetter.objects.filter(command_id=id).first())
    return found


def test_command_that_raises_while_nobody_waits_is_kept_with_type_message_and_traceback(
    running: Processors, note: str
) -> None:
    command = RaiseInHandler(aggregate_root_id=note)
    send_command(command)
    letter = letter_of(command.id)
    assert (letter.aggregate_root_id, letter.command_type) == (note, "notebook.RaiseInHandler")
    assert (letter.topic, letter.attempts, letter.is_answered) == (conf().COMMAND_TOPIC, 1, False)
    assert letter.error_type == "RuntimeError"
    assert "Traceback" in letter.error
    assert "notebook.py" in letter.error
    assert bytes(letter.body) in running.messages(conf().COMMAND_TOPIC)


def test_command_that_raises_while_somebody_waits_is_answered_and_not_kept(running: Processors, note: str) -> None:
    command = RaiseInHandler(aggregate_root_id=note)
    assert execute_command(command).error_type == "RuntimeError"
    assert execute_command(Count(aggregate_root_id=note)).value == 1
    assert not DeadLetter.objects.filter(command_id=command.id).exists()
