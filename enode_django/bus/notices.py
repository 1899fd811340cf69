"""The notices of a subscriber to waiting senders: a command's events are handled, or their aggregate is parked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from enode_django.concurrency.backoff import Persist
from enode_django.equeue.replying import deliver
from enode_django.equeue.transport import Transport
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.plain import pack, unpack

NOTICE = b"\x02"
"""The first byte of a notice. Answers share the inbox and begin with another byte."""
LONGEST_ERROR = 1_000
"""The most characters of an error in a notice."""


class Notice(NamedTuple):
    """``error`` says why the aggregate is parked at or before the command's version; it is empty if the events are
    handled."""

    command_id: str
    aggregate_root_id: str
    subscriber: str
    error: str = ""


SendNotices = Callable[[Sequence[tuple[str, Notice]]], None]
"""Takes (address, notice) pairs."""


def encode_notice(notice: Notice) -> bytes:
    error = notice.error[:LONGEST_ERROR].encode(errors="replace").decode()
    return NOTICE + pack((notice.command_id, notice.aggregate_root_id, notice.subscriber, error))


def decode_notice(body: bytes) -> Notice:
    """Decode a notice. Raises `MalformedMessage`."""
    try:
        parts = unpack(body.removeprefix(NOTICE), is_foreign=True)
        if body.startswith(NOTICE) and all(type(part) is str for part in parts):
            return Notice(*parts)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are not a notice of ours: {error}") from error
    raise MalformedMessage(f"{len(body)} bytes are not a notice of ours")


def notices_through(transport: Transport, persist: Persist) -> SendNotices:
    """Return a function that sends notices through a transport. It blocks as ``persist`` does while the queue is
    unavailable. A notice to an inbox that is gone is dropped."""

    def send(notices: Sequence[tuple[str, Notice]]) -> None:
        replies = [(address, encode_notice(notice)) for address, notice in notices if address]
        if replies:
            persist(partial(deliver, transport, replies))

    return send
