"""The requests of clients: their frames, names, and the kinds of their arguments. Pure. Every value from outside is
checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgpack

from enode_django.equeue.broker.access import Role
from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.state import commit_of
from enode_django.equeue.frames import MAX_ALL_ITEMS, MAX_ITEMS, decode_message
from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import LONGEST_AGE
from enode_django.exceptions import BadRequest, MalformedFrame, UnknownRequest, shown

MAX_PLAIN_FRAME = 1024 * 1024
"""Bytes of a request without messages. A request about all queues of a topic takes 0.8 MB at most."""
MAX_TEXT = 64 * 1024
"""Bytes of one text. A later check refuses names that are too long, with a better message; this limit bounds memory,
since a text takes up to four times as much memory as it has bytes."""
_HEAD = 64
"""Bytes that contain the number and the name of a request."""
MOST_TEXT = 1_000
MOST_QUEUES = 1 << 16
_BACKUP_NAME = re.compile(r"(?!.*\.new$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The name of a directory. One that ends with ".new" belongs to an unfinished backup."""

Check: TypeAlias = Callable[[Any], Any]


def text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise ValueError(f"{shown(value)} is not a text of at most {MOST_TEXT} characters")
    return value


def number(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


def natural(value: Any) -> int:
    if not 0 <= number(value) < 1 << 63:
        raise ValueError(f"{shown(value)} is not a number from 0 to {(1 << 63) - 1}")
    return number(value)


def queue_total(value: Any) -> int:
    if number(value) > MOST_QUEUES:
        raise ValueError(f"{shown(value)} queues are too many for a topic; it can have {MOST_QUEUES}")
    return number(value)


def seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= LONGEST_AGE:
        raise ValueError(f"{shown(value)} is not a number of seconds from 0 to {LONGEST_AGE:.0f}")
    return value


def number_of_seconds(value: Any) -> float:
    """Return a number of seconds. The handler checks the range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number of seconds")
    return value


def moment(value: Any) -> float:
    if not isinstance(value, int | float) or not -LONGEST_AGE * 100 <= value <= LONGEST_AGE * 100:
        raise ValueError(f"{shown(value)} is not a time in seconds since 1970")
    return value


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not true or false")
    return value


def data(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"{shown(value)} is not a byte string")
    return value


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def numbers(value: Any) -> Mapping[int, int]:
    if not isinstance(value, dict) or not all(isinstance(n, int) for pair in value.items() for n in pair):
        raise ValueError(f"{shown(value)} does not give numbers for numbers")
    return value


def deaths(value: Any) -> Sequence[tuple[int, int]]:
    return [(number(queue), number(offset)) for queue, offset in value]


def commits(value: Any) -> Mapping[int, Commit]:
    return {number(queue): _commit(values) for queue, values in value.items()}


def _commit(values: Any) -> Commit:
    commit = commit_of(values)
    for each in (commit.epoch, commit.offset, commit.keep):
        number(each)
    for receipt in commit.receipts:
        number(receipt.offset), data(receipt.body)
    return commit


def batches(value: Any) -> Sequence[NewBatch]:
    found = []
    for queue, count, body in value:
        if not isinstance(queue, int) or not isinstance(count, int) or not isinstance(body, bytes):
            raise ValueError("a batch is a queue number, a count and a body")
        if not 0 < count < 1 << 32 or len(body) >= 1 << 32:
            raise ValueError(f"a batch cannot have {count} messages in {len(body)} bytes")
        found.append(NewBatch(queue, count, body))
    return found


def producer(value: Any) -> bytes:
    if len(data(value)) != 16:
        raise ValueError(f"{shown(value)} does not name a producer; 16 bytes do")
    return data(value)


def backup_name(value: Any) -> str:
    if not isinstance(value, str) or not _BACKUP_NAME.fullmatch(value):
        raise ValueError(f"{shown(value)} cannot name a backup; use up to 100 letters, digits, '.', '-' and '_'")
    return value


def replies(value: Any) -> Sequence[tuple[str, bytes]]:
    return [(text(address), data(body)) for address, body in value]


class Request(NamedTuple):
    """``when_safe``: the answer says that something is stored, or where queues end, so it waits for the disk if every
    write has to. ``defaults``: values for the last arguments, which earlier clients do not send. ``role``: the role
    that a client's secret needs; None: any. ``is_large``: the frame holds messages, receipts or answers, and may have
    the size of any frame."""

    arguments: tuple[Check, ...]
    when_safe: bool = False
    defaults: tuple[Any, ...] = ()
    role: Role | None = Role.ADMINISTER
    is_large: bool = False


PRODUCE, CONSUME, ADMINISTER = Role.PRODUCE, Role.CONSUME, Role.ADMINISTER

REQUESTS: Mapping[str, Request] = {
    "topics": Request((), role=None),
    "create_topic": Request((text, queue_total), when_safe=True, role=PRODUCE),
    "queue_count": Request((text,), role=None),
    "queues": Request((text,), role=None),
    "route": Request((text,), role=None),
    "delete_topic": Request((text, truth), when_safe=True, role=ADMINISTER),
    "delete_queue": Request((text, natural, truth), when_safe=True, role=ADMINISTER),
    "add_queues": Request((text, queue_total, optional(truth)), when_safe=True, role=ADMINISTER),
    "show": Request((text, number, *[optional(truth)] * 3), when_safe=True, role=ADMINISTER),
    "announce": Request((text, text), role=PRODUCE),
    "producers": Request((text,), role=None),
    "send": Request((text, batches, optional(number), producer, natural), when_safe=True, role=PRODUCE, is_large=True),
    "pull": Request((text, numbers, number, seconds), role=CONSUME),
    "end_offsets": Request((text,), when_safe=True, role=None),
    "offsets_at": Request((text, moment), role=None),
    "join": Request((text, text, text, seconds), role=CONSUME),
    "leave": Request((text, text, text), role=CONSUME),
    "bury": Request((text, text, text, deaths), when_safe=True, role=CONSUME),
    "acquire": Request((text, text, number, text, seconds, number), when_safe=True, role=CONSUME),
    "renew": Request((text, text, text, numbers, seconds), role=CONSUME),
    "release": Request((text, text, text, numbers), role=CONSUME),
    "commit": Request((text, text, commits), when_safe=True, role=CONSUME, is_large=True),
    "receipts": Request((text, text, number), role=CONSUME),
    "receipts_from": Request((text, text, number, natural), role=CONSUME),
    "committed": Request((text, text), role=None),
    "set_offset": Request((text, text, number, number), when_safe=True, role=ADMINISTER),
    "groups": Request((text,), role=None),
    "timelines": Request((text,), role=None),
    "delete_group": Request((text, text), when_safe=True, role=ADMINISTER),
    "retire_group": Request((text, text), when_safe=True, role=ADMINISTER),
    "pause_group": Request((text, text, truth), when_safe=True, role=ADMINISTER),
    "paused_groups": Request((text,), role=None),
    "set_retention": Request((text, optional(number_of_seconds)), when_safe=True, role=ADMINISTER),
    "retention": Request((text,), role=None),
    "trim": Request((text,), role=CONSUME),
    "open_inbox": Request((text,), role=PRODUCE),
    "close_inbox": Request((text,), role=PRODUCE),
    "receive": Request((text, natural, seconds), role=PRODUCE),
    "reply": Request((replies,), role=CONSUME, is_large=True),
    "status": Request((), role=None),
    "figures": Request((), role=None),
    "back_up": Request((backup_name,), role=ADMINISTER),
}


def decode_request(payload: memoryview) -> Any:
    """Return the request. Raises `MalformedFrame`, after at most `_HEAD` bytes if it is too large for its name."""
    if len(payload) > MAX_PLAIN_FRAME and not _may_be_large(payload):
        raise MalformedFrame(
            f"a request of {len(payload)} bytes is above the limit of {MAX_PLAIN_FRAME} for those without messages in "
            "them; send less at once"
        )
    return decode_message(payload, MAX_ITEMS, max_all_items=MAX_ALL_ITEMS, max_text=MAX_TEXT)


def _may_be_large(payload: memoryview) -> bool:
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload[:_HEAD])
    try:
        unpacker.read_array_header()
        unpacker.skip()
        request = REQUESTS.get(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException):  # it has no name there
        return False
    return request is not None and request.is_large


def checked(name: str, values: Sequence[Any]) -> list[Any]:
    """Return the checked arguments, without extra ones of a later client. Raises `BadRequest` and `UnknownRequest`."""
    request = REQUESTS.get(name)
    if request is None:
        raise UnknownRequest(
            f"the broker knows no request {name[:50]!r}; if it is older than its client, upgrade enode_django on the "
            "broker's host"
        )
    missing = len(request.arguments) - len(values)
    if missing > len(request.defaults):
        raise BadRequest(f"{name} takes {len(request.arguments)} arguments, got {len(values)}")
    given = [*values, *request.defaults[len(request.defaults) - missing :]] if missing > 0 else values
    try:
        return [check(value) for check, value in zip(request.arguments, given, strict=False)]
    except (ValueError, TypeError, AttributeError) as error:
        raise BadRequest(f"{name}: {error}") from error
