"""Idempotency keys: requests of one user with the same key and content are one command, which takes effect once."""

from __future__ import annotations

import json
from datetime import timedelta
from hashlib import blake2b
from typing import Any
from zlib import crc32

from django.db import connections, router
from django.db.models import QuerySet
from django.db.models.functions import Now

from enode_django.api.problems import Problem, invalid_parameter
from enode_django.conf import conf
from enode_django.domain.messages import Command
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import InvalidId, MalformedMessage
from enode_django.ids import check_id, id_of_key
from enode_django.models import EventStream, ReceivedCommand
from enode_django.runtime import make_store
from enode_django.serialization.codec import decode_metadata
from enode_django.serialization.registry import types

_EVERY, _PRUNED_AT_ONCE = 100, 500


def command_id_of(header: str | None, user: str) -> str | None:
    """Return the id of the command that ``user`` sends with this ``Idempotency-Key``; None without a key.

    The key may have the quotes of a structured field. It is not used as the id, which could collide with that of
    another user's command, or a process manager's. Raises a `Problem` of status 400.

    For example::

        class DepositView(APIView):
            def post(self, request: Request, account: str) -> Response:
                user = str(request.user.pk)
                id = command_id_of(request.headers.get("Idempotency-Key"), user) or new_id()
                result = execute_command(Deposit(account, id=id, amount=Decimal(request.data["amount"])))
                return Response({"balance": result.value})
    """
    if header is None:
        return None
    quoted = len(header) > 1 and header[0] == header[-1] == '"'
    try:
        key = check_id(header[1:-1] if quoted else header)
    except InvalidId as error:
        raise invalid_parameter("Idempotency-Key", str(error)) from error
    return id_of_key(user, key)


def receive(command: Command, content: Any, user: str) -> None:
    """Record that ``user`` sends this command; ``content`` is the parsed JSON. Raises a `Problem` of status 422 if
    another command, or another user's, has the id. The problem does not say which. Blocks on the database.

    For example::

        command = Deposit("ada", id=id_of_key("7", "order-5"), amount=Decimal(5))
        receive(command, {"amount": "5"}, user="7")
    """
    digest = _digest(content)
    row = _find(command.id)
    if row is None:
        # Check before the insert: to other requests, a row means that the stored command was checked.
        _check_stored(command, user)
        if _insert(command.id, user, digest):
            if prunes(command.id):
                prune()
            return
        row = _find(command.id)
    if row is not None and (row.user, bytes(row.digest)) != (user, digest):
        raise _other_content()


def _rows() -> QuerySet[ReceivedCommand]:
    """Return the received commands of the database for writes, since a replica may lag."""
    return ReceivedCommand.objects.using(router.db_for_write(ReceivedCommand))


def _find(id: str) -> ReceivedCommand | None:
    return _rows().filter(command_id=id).first()


def _digest(content: Any) -> bytes:
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).digest()


def _insert(id: str, user: str, digest: bytes) -> bool:
    table = ReceivedCommand._meta.db_table
    with connections[router.db_for_write(ReceivedCommand)].cursor() as cursor:
        cursor.execute(
            f'INSERT INTO {table} (command_id, "user", digest) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING',
            (id, user, digest),
        )
        return bool(cursor.rowcount)


def _check_stored(command: Command, user: str) -> None:
    """Raise a `Problem` if a stored command has this id, and is of another user or type. A stored command came another
    way, or its key was deleted; its outcome becomes the answer."""
    key = (command.id, command.aggregate_root_id)
    stored = make_store().find([key]).get(key)
    if stored is not None and not _is_from(stored, command, user):
        raise _other_content()


def _is_from(stored: StreamRecord, command: Command, user: str) -> bool:
    return types.find(Command, stored.command_type) is type(command) and is_sent_by(user, stored)


def is_sent_by(user: str, record: StreamRecord | EventStream) -> bool:
    """Return True if this user sent the command; False for an empty user. A command that followed from an event or
    another command names the user who caused it, but is not theirs: it may be for any aggregate."""
    try:
        metadata = decode_metadata(bytes(record.metadata))
    except MalformedMessage:
        return False
    return metadata.user_id == user != "" and metadata.causation_id is None


def _other_content() -> Problem:
    return Problem(
        422, "this Idempotency-Key was used for another command; use a new key for each", kind="enode:key-reused"
    )


def is_pending(id: str, user: str) -> bool:
    return _rows().filter(command_id=id, user=user).exists()


def prunes(command_id: str) -> bool:
    """Return True for one id in `_EVERY`. A count of new keys would never get there in processes that end early."""
    return crc32(command_id.encode()) % _EVERY == 0


def prune() -> int:
    """Delete up to `_PRUNED_AT_ONCE` keys that are older than ``KEY_RETENTION``. Return the number deleted. Called
    after one in `_EVERY` new keys, so that old ones do not pile up."""
    age = timedelta(seconds=conf().API.KEY_RETENTION)
    old = _rows().filter(received_at__lt=Now() - age).order_by("received_at")
    deleted, _ = _rows().filter(pk__in=list(old.values_list("pk", flat=True)[:_PRUNED_AT_ONCE])).delete()
    return deleted
