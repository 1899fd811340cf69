"""Ids of aggregates and commands: 1 to 255 characters of UTF-8 without NUL."""

from __future__ import annotations

import os
import re
import threading
import time
from hashlib import sha256
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from enode_django.exceptions import InvalidId, shown

__all__ = ["check_id", "id_of_key", "new_id"]

MAX_ID_LENGTH = 255


AggregateId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"^[^\x00]+$")]
"""The type of a field that names an aggregate: a text of 1 to 255 characters without NUL, checked when a message is
made. Lone surrogates are refused when it is sent, as in every text.

For example::

    class StartTransfer(Command):
        source: AggregateId
        target: AggregateId
"""


class _Clock:
    """A clock of milliseconds that never goes back within a process, with a counter in each (RFC 9562, method 1)."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Reset the clock: a forked child must neither repeat its parent's ids nor wait for a lock held there."""
        self.lock = threading.Lock()
        self.millisecond = 0
        self.counter = 0

    def tick(self) -> tuple[int, int]:
        with self.lock:
            now = time.time_ns() // 1_000_000
            if now > self.millisecond:
                self.millisecond = now
                # The top bit stays free, so that a burst can count up before it borrows from the next millisecond.
                self.counter = int.from_bytes(os.urandom(2), "big") & 0x7FF
            else:
                self.counter += 1
                if self.counter > 0xFFF:
                    self.millisecond += 1
                    self.counter = 0
            return self.millisecond, self.counter


_clock = _Clock()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_clock.start)


def new_id() -> str:
    """Return a new UUIDv7 (RFC 9562) as text. Later ids sort later, which keeps index inserts local.

    For example::

        account = new_id()
        execute_command(OpenAccount(account, owner="Ada"))
        assert BankAccount.load(account).owner == "Ada"
    """
    millisecond, counter = _clock.tick()
    rest = (int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000
    digits = f"{(millisecond << 16) | 0x7000 | counter:016x}{rest:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_OF_KEYS = "enode_django idempotency key"


def id_of_key(user: str, key: str) -> str:
    """Return the id of the command that ``user`` (empty: anonymous) sends with an idempotency key.

    It is a UUIDv8 (RFC 9562) of a SHA-256 over user and key. Process managers derive UUIDs of version 5 and new ids are
    of version 7, so no key can produce the id of a command of another sender.

    For example::

        assert id_of_key("7", "order-5") == "fc41b2ff-1442-85e5-b9fb-e50263f08338"
    """
    # The length marks where the user ends, so different pairs of user and key make different texts.
    digest = int.from_bytes(sha256(f"{_OF_KEYS}/{len(user)}:{user}{key}".encode()).digest()[:16], "big")
    digest = digest & ~(0xF << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62
    return str(UUID(int=digest))


def made_at(id: str) -> float | None:
    """Return the time at which a UUIDv7 was made, in seconds since 1970; None for every other id.

    >>> made_at("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), made_at("account-1")
    (1645557742.0, None)
    """
    if len(id) != 36 or id[14] != "7":
        return None
    try:
        return int(id[:8] + id[9:13], 16) / 1_000
    except ValueError:
        return None


def check_id(value: object, what: str = "id") -> str:
    """Return ``value`` as a plain str if it is a valid id. Raises `InvalidId`, which names ``what`` the id is for.

    For example::

        assert check_id("ada") == "ada"
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise InvalidId(f"{what} must be a string, got {shown(value)}; pass str(value)")
        value = str.__str__(value)
    if value.isascii():
        if 0 < len(value) <= MAX_ID_LENGTH and "\0" not in value:
            return value
    elif len(value) <= MAX_ID_LENGTH and "\0" not in value and _is_utf8(value):
        return value
    start = value if len(value) <= 40 else value[:40] + "…"
    raise InvalidId(
        f"{what} {start!r} has {len(value)} characters; it must have 1 to {MAX_ID_LENGTH}, of UTF-8 without NUL"
    )


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and marks that change the direction of text."""


def check_given_id(value: object) -> str:
    """Check an id from outside, like `check_id`. Raises `InvalidId` for control characters, too: they could break the
    lines of a log, or make an id look like another one on a screen."""
    id = check_id(value)
    if _UNSEEN.search(id):
        raise InvalidId(f"id {shown(id)} holds control characters; leave them out")
    return id


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
