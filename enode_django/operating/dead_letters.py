"""Find the dead letters of commands, send them again, and discard them.

Letters are sent before their rows are deleted, so after a crash in between they can be sent twice, and none is lost.
Each takes effect once, since a letter has the same command id each time it is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q

from enode_django.conf import conf
from enode_django.equeue.transport import Transport
from enode_django.exceptions import CommandIdReused, EnodeError, QueueError
from enode_django.models import DeadLetter, EventStream
from enode_django.runtime import make_producer
from enode_django.serialization.codec import as_new_command

if TYPE_CHECKING:
    from django.db.models import QuerySet

AT_ONCE = 100
"""The number of letters that are sent and then deleted together."""
SHORTEST_KEY = 8
MOST_TYPES = 10
_NAMESPACE = uuid.UUID("7c2f9d1e-55a4-5f0b-8d57-0f3b1c64a9e2")


class Portion(NamedTuple):
    """Letters that were settled together: how many, and the primary keys of those that are gone. A letter stays if its
    command has failed again meanwhile."""

    many: int
    gone: Sequence[int]


class Choice(NamedTuple):
    """A filter of letters by ``names`` (a command id, or a key's first `SHORTEST_KEY` or more characters), command type
    and error type. An empty field matches every letter."""

    names: Sequence[str] = ()
    command_type: str = ""
    error_type: str = ""

    def letters(self) -> Iterator[tuple[str, QuerySet[Any]]]:
        """Yield the letters of each database of the event store with its alias, the oldest first. ``is_stored`` of a
        letter: its command is stored by now, so sending it again changes nothing."""
        for alias in conf().EVENT_STORE.DATABASES:
            yield alias, letters_in(alias).filter(self._condition())

    def _condition(self) -> Q:
        named = [Q(command_id=name) | _by_key(name) for name in self.names]
        condition = reduce(or_, named) if named else Q()
        if self.command_type:
            condition &= Q(command_type=self.command_type)
        if self.error_type:
            condition &= Q(error_type=self.error_type)
        return condition


def letters_in(alias: str) -> QuerySet[Any]:
    """Return the letters of one database of the event store, the oldest first, each with ``is_stored``."""
    stored = EventStream.objects.using(alias).filter(
        command_id=OuterRef("command_id"), aggregate_root_id=OuterRef("aggregate_root_id")
    )
    # With CommandIdReused, the stored row is that of the other command with this id.
    is_stored = ExpressionWrapper(~Q(error_type=CommandIdReused.__name__) & Exists(stored), BooleanField())
    return DeadLetter.objects.using(alias).annotate(is_stored=is_stored).order_by("first_failed_at", "pk")


def types_of_letters() -> str:
    """Return the types of the commands that are dead letters, the first `MOST_TYPES` of them; empty if there are
    none."""
    kinds = [
        DeadLetter.objects.using(alias).exclude(command_type="").values_list("command_type", flat=True).distinct()
        for alias in conf().EVENT_STORE.DATABASES
    ]
    found = sorted({name for names in kinds for name in names})
    return ", ".join([*found[:MOST_TYPES], *(["…"] if len(found) > MOST_TYPES else [])])


def name_of(letter: DeadLetter) -> str:
    """Return a name of the letter for `Choice`."""
    return letter.command_id or letter.key[:16]


def requeue(transport: Transport, choice: Choice) -> int:
    """Send letters again, to the end of their queues, and delete their rows. Return the number of letters sent.

    A row stays if its command has failed again meanwhile. Raises `QueueError`, and sends nothing, if a name matches no
    letter.
    """
    return _settled(choice, partial(requeue_in, transport))


def requeue_in(transport: Transport, alias: str, pks: Sequence[int]) -> Iterator[Portion]:
    """Send letters of one database again, by their primary keys, and delete them. Yield each portion when that is done:
    an error in a later one takes nothing back."""
    producer, topic = make_producer(transport), conf().COMMANDS.TOPIC
    for letters in _portions(alias, pks):
        producer.send_all(topic, [(letter.aggregate_root_id or "?", _message(letter)) for letter in letters])
        yield Portion(len(letters), _delete(alias, letters))


def discard(choice: Choice) -> int:
    """Delete letters without sending them. Return the number deleted. Raises `QueueError` if a name matches no
    letter."""
    return _settled(choice, discard_in)


def discard_in(alias: str, pks: Sequence[int]) -> Iterator[Portion]:
    """Delete letters of one database, by their primary keys. Yield each portion when that is done."""
    for letters in _portions(alias, pks):
        gone = _delete(alias, letters)
        yield Portion(len(gone), gone)


def _settled(choice: Choice, settle: Callable[[str, Sequence[int]], Iterator[Portion]]) -> int:
    _check_names(choice)
    letters = ((alias, list(found.values_list("pk", flat=True))) for alias, found in choice.letters())
    return sum(portion.many for alias, pks in letters for portion in settle(alias, pks))


def _portions(alias: str, pks: Sequence[int]) -> Iterator[Sequence[DeadLetter]]:
    for start in range(0, len(pks), AT_ONCE):
        if letters := list(letters_in(alias).filter(pk__in=pks[start : start + AT_ONCE])):
            yield letters


def _delete(alias: str, letters: Sequence[DeadLetter]) -> Sequence[int]:
    """Delete the letters that are as they were read. Return their primary keys. If a sender was told meanwhile that a
    command failed, the copy that was sent of it gets the same answer, so its letter stays."""
    as_read = reduce(or_, (Q(pk=one.pk, attempts=one.attempts, is_answered=one.is_answered) for one in letters))
    with transaction.atomic(using=alias):
        chosen = DeadLetter.objects.using(alias).filter(as_read).order_by("pk").select_for_update()
        gone = list(chosen.values_list("pk", flat=True))
        DeadLetter.objects.using(alias).filter(pk__in=gone).delete()
    return gone


def _message(letter: DeadLetter) -> bytes:
    """Return the message to send. It gets a new command id if the sender was told that the command failed, since an
    answer is final, or if the id belongs to another command."""
    body = bytes(letter.body)
    if is_told(letter) or letter.error_type == CommandIdReused.__name__:
        with suppress(EnodeError):  # a message that cannot be read here is sent as it is; workers may read it by now
            return as_new_command(body, str(uuid.uuid5(_NAMESPACE, f"{letter.key}/{letter.attempts}")))
    return body


def is_told(letter: Any) -> bool:
    """Return True if the sender was told that the command failed. If the command is stored, nobody was told: the worker
    recorded the answer before sending it, and lost the queue."""
    return letter.is_answered and not letter.is_stored


def _by_key(name: str) -> Q:
    return Q(key__startswith=name) if len(name) >= SHORTEST_KEY else Q(pk__in=())


def _check_names(choice: Choice) -> None:
    for name in choice.names:
        if not any(found.exists() for _, found in choice._replace(names=(name,)).letters()):
            raise QueueError(
                f"no dead letter of a command has the name {name!r}; manage.py enode queue dead-letters shows them"
            )
