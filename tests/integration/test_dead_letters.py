"""Commands that an exception ends while nobody waits: they are kept, and take effect once when they are sent again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models import F

from enode_django import CommandStatus, send_command, try_command
from enode_django.conf import conf
from enode_django.equeue.producer import Producer
from enode_django.eventstore.dead_letters import PostgresDeadLetters
from enode_django.exceptions import TransportUnavailable
from enode_django.models import DeadLetter
from enode_django.operating.dead_letters import Choice, discard, requeue
from enode_django.runtime import make_producer, make_transport
from enode_django.serialization.codec import encode_command
from enode_django.serialization.plain import pack
from tests.integration.notebook import Count, CountWhenMended, CreateNote, RaiseInHandler, broken
from tests.integration.running import Processors, processors, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(redis_url: str) -> Iterator[Processors]:
    with processors(WORKERS={"UNKNOWN_TYPE_DELAYS": ()}) as running:
        yield running


@pytest.fixture
def note(running: Processors) -> str:
    id = f"note-{uuid.uuid4().hex}"
    assert try_command(CreateNote(id)).status is CommandStatus.SUCCESS
    return id


def letter_of(id: str) -> DeadLetter:
    found: DeadLetter = wait_for(lambda: DeadLetter.objects.filter(command_id=id).first())
    return found


def test_command_that_raises_while_nobody_waits_is_kept_with_type_message_and_traceback(
    running: Processors, note: str
) -> None:
    command = RaiseInHandler(note)
    send_command(command)
    letter = letter_of(command.id)
    assert (letter.aggregate_root_id, letter.command_type) == (note, "notebook.RaiseInHandler")
    assert (letter.topic, letter.attempts, letter.is_answered) == (conf().COMMANDS.TOPIC, 1, False)
    assert letter.error_type == "RuntimeError"
    assert "Traceback" in letter.error
    assert "notebook.py" in letter.error
    assert bytes(letter.body) in running.messages(conf().COMMANDS.TOPIC)


def test_command_that_raises_while_somebody_waits_is_answered_and_not_kept(running: Processors, note: str) -> None:
    command = RaiseInHandler(note)
    assert try_command(command).error_type == "RuntimeError"
    assert try_command(Count(note)).value == 1
    assert not DeadLetter.objects.filter(command_id=command.id).exists()


# -- sending again ----------------------------------------------------------------------------------------------------


@pytest.fixture
def crashed(running: Processors, note: str) -> Iterator[CountWhenMended]:
    """Yield a command that failed while nobody waited. The reason of its failure is gone."""
    command = CountWhenMended(note)
    broken.add(note)
    send_command(command)
    letter_of(command.id)
    broken.discard(note)
    # The same mailboxes take this one after it: when it is answered, a copy is not a repeat of what has just failed.
    try_command(RaiseInHandler(note))
    yield command
    broken.discard(note)


def counted(note: str) -> int:
    """Count the note up. Return how often that happened before."""
    value: int = try_command(Count(note)).value
    return value - 1


def test_sent_again_it_takes_effect_under_its_own_id_and_the_letter_is_gone(
    running: Processors, crashed: CountWhenMended
) -> None:
    assert requeue(running.transport, Choice([crashed.id])) == 1
    assert counted(crashed.aggregate_root_id) == 1
    assert not DeadLetter.objects.filter(command_id=crashed.id).exists()
    # A process manager that has lost its checkpoint repeats the same command.
    send_command(crashed)
    assert counted(crashed.aggregate_root_id) == 2, "only the count before this was added"
    result = try_command(crashed)
    assert (result.status, result.version) == (CommandStatus.SUCCESS, 2)


def test_requeue_that_dies_after_sending_is_repeated_and_takes_effect_once(
    running: Processors, crashed: CountWhenMended, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_all = Producer.send_all

    def send_and_die(self: Producer, *arguments: object) -> None:
        send_all(self, *arguments)  # type: ignore[arg-type]
        raise TransportUnavailable("the connection was lost")

    with monkeypatch.context() as dying:
        dying.setattr(Producer, "send_all", send_and_die)
        with pytest.raises(TransportUnavailable):
            requeue(running.transport, Choice([crashed.id]))
    assert DeadLetter.objects.filter(command_id=crashed.id).exists()
    assert requeue(running.transport, Choice([crashed.id])) == 1
    assert counted(crashed.aggregate_root_id) == 1


def test_command_that_crashes_again_before_its_letter_is_settled_keeps_it(
    running: Processors, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = RaiseInHandler(note)
    send_command(command)
    letter_of(command.id)
    send_all = Producer.send_all

    def send_and_see_it_crash(self: Producer, *arguments: object) -> None:
        send_all(self, *arguments)  # type: ignore[arg-type]
        wait_for(lambda: DeadLetter.objects.filter(command_id=command.id, attempts=2).exists())

    monkeypatch.setattr(Producer, "send_all", send_and_see_it_crash)
    assert requeue(running.transport, Choice([command.id])) == 1
    assert letter_of(command.id).attempts == 2


def test_command_whose_sender_is_told_while_its_letter_is_sent_again_keeps_it(
    running: Processors, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent has the id of the answer, which is final."""
    command = CountWhenMended(note)
    broken.add(note)
    send_command(command)
    letter_of(command.id)
    send_all = Producer.send_all

    def ask_and_send(self: Producer, *arguments: object) -> None:
        assert try_command(command).status is CommandStatus.FAILED
        broken.discard(note)
        send_all(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as asked_meanwhile:
        asked_meanwhile.setattr(Producer, "send_all", ask_and_send)
        assert requeue(running.transport, Choice([command.id])) == 1
    assert counted(note) == 0
    assert DeadLetter.objects.get(command_id=command.id).is_answered
    assert requeue(running.transport, Choice([command.id])) == 1
    assert counted(note) == 2, "with the count before this"
    assert not DeadLetter.objects.filter(command_id=command.id).exists()


def test_all_of_a_kind_are_sent_again_and_others_stay(running: Processors, crashed: CountWhenMended) -> None:
    other = RaiseInHandler(crashed.aggregate_root_id)
    send_command(other)
    letter_of(other.id)
    assert requeue(running.transport, Choice(command_type="notebook.CountWhenMended", error_type="KeyError")) == 0
    assert requeue(running.transport, Choice(command_type="notebook.CountWhenMended", error_type="RuntimeError")) == 1
    assert counted(crashed.aggregate_root_id) == 1
    assert DeadLetter.objects.filter(command_id=other.id).exists()
    assert discard(Choice([other.id])) == 1
    assert not DeadLetter.objects.filter(command_id=other.id).exists()


def test_command_whose_sender_was_told_that_it_failed_is_sent_again_under_another_id(
    running: Processors, note: str
) -> None:
    """An answer is final. Here it came from a worker that did not know the type yet."""
    inbox = running.transport.open_inbox()
    command = Count(note)
    send_as_unknown_type(command, inbox.address)
    wait_for(lambda: inbox.receive(0.1))
    letter = letter_of(command.id)
    assert letter.is_answered
    # By now the type is known.
    letter.body = encode_command(command, b"", inbox.address)
    letter.save(update_fields=["body"])
    assert requeue(running.transport, Choice([command.id])) == 1
    assert counted(note) == 1
    assert try_command(command).status is CommandStatus.FAILED, "the answer to the old id stays"
    assert inbox.receive(0) == [], "whoever waited once is not told of another command"
    inbox.close()


def send_as_unknown_type(command: Count, address: str) -> None:
    body = pack((1, "notebook.NotYet", command.id, command.aggregate_root_id, {}, b"", address))
    transport = make_transport()
    make_producer(transport).send_all(conf().COMMANDS.TOPIC, [(command.aggregate_root_id, body)])
    transport.close()


def test_letter_of_a_command_that_is_stored_by_now_says_so_and_sending_it_again_changes_nothing(
    running: Processors, crashed: CountWhenMended
) -> None:
    send_command(crashed)
    assert counted(crashed.aggregate_root_id) == 1
    ((letter,),) = [list(found) for _, found in Choice([crashed.id]).letters()]
    assert letter.is_stored
    assert requeue(running.transport, Choice([crashed.id])) == 1
    assert counted(crashed.aggregate_root_id) == 2, "only the count before this was added"


def test_letter_of_a_stored_command_is_sent_under_its_own_id_though_it_counts_as_answered(
    running: Processors, crashed: CountWhenMended
) -> None:
    """A worker noted that it would answer a copy of the command, lost the queue, and the next worker stored it."""
    send_command(crashed)
    assert counted(crashed.aggregate_root_id) == 1
    DeadLetter.objects.filter(command_id=crashed.id).update(is_answered=True)
    assert requeue(running.transport, Choice([crashed.id])) == 1
    assert counted(crashed.aggregate_root_id) == 2, "only the count before this was added"


def test_letters_that_nobody_settles_are_deleted_after_a_time(running: Processors, note: str) -> None:
    command = RaiseInHandler(note)
    send_command(command)
    letter = letter_of(command.id)
    letters = PostgresDeadLetters()
    assert letters.prune(timedelta(hours=1)) == 0
    DeadLetter.objects.filter(pk=letter.pk).update(last_failed_at=F("last_failed_at") - timedelta(hours=1))
    assert letters.prune(timedelta(hours=1)) == 1
    assert not DeadLetter.objects.filter(pk=letter.pk).exists()


def test_command_whose_sender_asked_later_and_was_told_that_it_failed_is_sent_again_under_another_id(
    running: Processors, note: str
) -> None:
    """With the same id the queue would repeat its answer, and the letter would be lost."""
    command = CountWhenMended(note)
    broken.add(note)
    send_command(command)
    assert not letter_of(command.id).is_answered
    assert try_command(command).status is CommandStatus.FAILED
    broken.discard(note)
    assert letter_of(command.id).is_answered
    assert requeue(running.transport, Choice([command.id])) == 1
    assert counted(note) == 1
    assert try_command(command).status is CommandStatus.FAILED, "an answer is final"
