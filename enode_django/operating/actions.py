"""The audit trail: a row for each action of an operator in the admin or by a management command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, router, transaction
from django.utils.connection import ConnectionDoesNotExist

from enode_django.models import OperatorAction

logger = logging.getLogger("enode_django.operators")

LONGEST_OBJECT, LONGEST_REASON = 500, 2_000
SUBSCRIBER, TOPIC, GROUP = "subscriber", "topic", "consumer group"


class Done(NamedTuple):
    """An action of an operator. ``row`` is the primary key of the object's row, if it has one."""

    action: str
    object_type: str
    object_id: str
    details: str = ""
    reason: str = ""
    row: str = ""


def record(operator: str, source: OperatorAction.Source, done: Done) -> None:
    """Log an action and store it. If it cannot be stored, log all its fields as an error and return, since the action
    itself has happened. Blocks."""
    operator, done = _storable(operator), Done(*map(_storable, done))
    logger.info("%s by %s: %s %s: %s", done.action, operator, done.object_type, done.object_id, done.details)
    alias = router.db_for_write(OperatorAction)
    try:
        with transaction.atomic(using=alias):  # an error must not end the transaction of a request
            OperatorAction.objects.using(alias).create(
                operator=operator[:300],
                source=source,
                **{
                    **done._asdict(),
                    "object_id": done.object_id[:LONGEST_OBJECT],
                    "reason": done.reason[:LONGEST_REASON],
                },
            )
    except (Error, ImproperlyConfigured, ConnectionDoesNotExist) as error:  # the last two: no database at all
        logger.error("the action is not in the audit trail: %s; %s by %s", error, done, operator)


def _storable(text: str) -> str:
    """Escape what PostgreSQL refuses: NUL, and the lone surrogates that stand for bytes of a terminal's encoding."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


@contextmanager
def recorded(operator: str, source: OperatorAction.Source, done: Done) -> Iterator[list[str]]:
    """Store an action when the block has ended. Texts that the block adds to the list become its details. So does
    the class of an error that ends the block, since a part of the action may have happened."""
    details: list[str] = []
    try:
        yield details
    except BaseException as error:  # also Ctrl-C
        details.append(f"ended by {type(error).__name__}")  # its text may quote payload
        raise
    finally:
        record(operator, source, done._replace(details="; ".join([done.details, *details]).removeprefix("; ")))
