"""The origin of a command: user, request, correlation and causation ids.

Metadata is ambient: a context manager (or the middleware) sets it, and every command sent inside carries it. An event
carries the metadata of its command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from enode_django.exceptions import InvalidField, shown


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """``correlation_id`` names the whole conversation, ``causation_id`` the message that directly caused this one.

    ``extra`` holds values of the application, which must be plain (strings, numbers, None, lists, dicts).

    For example::

        with metadata(user_id="7", channel="web"):
            assert current_metadata() == Metadata(user_id="7", extra={"channel": "web"})
    """

    user_id: str | None = None
    request: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _STORED_NAMES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidField(f"metadata {name}={shown(value)} is not a string; pass str(...)")

    @property
    def user(self) -> str | None:
        """The ``user_id``, under its earlier name."""
        return self.user_id

    def as_map(self) -> dict[str, Any]:
        """Return the fields that are set, by their stored names."""
        named = {stored: value for name, stored in _STORED_NAMES.items() if (value := getattr(self, name)) is not None}
        return {**self.extra, **named}

    @classmethod
    def from_map(cls, stored: Mapping[str, Any]) -> Metadata:
        """Return stored metadata. Values that should be strings are converted, so that old rows stay readable."""
        known = {name: str(stored[key]) for name, key in _STORED_NAMES.items() if stored.get(key) is not None}
        return cls(**known, extra={key: value for key, value in stored.items() if key not in _KEYS})


def caused_by(metadata: Metadata, command_id: str) -> Metadata:
    """Return the metadata of the events and commands that a command with ``metadata`` causes."""
    return dataclasses.replace(
        metadata, causation_id=command_id or None, correlation_id=metadata.correlation_id or command_id or None
    )


_STORED_NAMES = {
    "user_id": "user",
    "request": "request",
    "correlation_id": "correlation_id",
    "causation_id": "causation_id",
}
_KEYS = frozenset(_STORED_NAMES.values())
EMPTY = Metadata()

_ambient: ContextVar[Metadata | Callable[[], Metadata]] = ContextVar("enode_metadata", default=EMPTY)


def current_metadata() -> Metadata:
    """Return the metadata that a command sent here would carry: that of the surrounding `metadata` block, of the
    request, or of the event that a subscriber handles. In a command handler use its context instead. In a request it
    blocks on a query if the user is not known yet.

    For example::

        with metadata(user_id="7"):
            assert current_metadata().user_id == "7"
    """
    ambient = _ambient.get()
    return ambient() if callable(ambient) else ambient


def known_metadata() -> Metadata | None:
    """Return the ambient metadata; None if they would have to be computed, which may take a query."""
    ambient = _ambient.get()
    return None if callable(ambient) else ambient


def known_correlation_id() -> str | None:
    """Return the ambient correlation id; None if it would have to be computed, which may take a query."""
    correlation_id: str | None = getattr(_ambient.get(), "correlation_id", None)
    return correlation_id


@contextmanager
def metadata(
    *,
    user_id: str | None = None,
    request: str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    user: str | None = None,
    **extra: Any,
) -> Iterator[Metadata]:
    """Give these values to the commands sent inside the block. A value that is None is taken from the enclosing block.

    ``user`` is the earlier name of ``user_id``. Raises `InvalidField` for a named value that is not a string, and if
    both ``user`` and ``user_id`` are given.

    For example::

        with metadata(user_id="7", channel="web"):
            execute_command(OpenAccount("ada", owner="Ada"))
        (opened,) = BankAccount.history("ada")
        assert (opened.metadata.user_id, opened.metadata.extra) == ("7", {"channel": "web"})
    """
    if user is not None:
        if user_id is not None:
            raise InvalidField(f"metadata user={shown(user)} is the earlier name of user_id={shown(user_id)}; give one")
        user_id = user
    outer = current_metadata()
    inner = Metadata(
        user_id=outer.user_id if user_id is None else user_id,
        request=outer.request if request is None else request,
        correlation_id=outer.correlation_id if correlation_id is None else correlation_id,
        causation_id=outer.causation_id if causation_id is None else causation_id,
        extra={**outer.extra, **extra},
    )
    with ambient_metadata(inner):
        yield inner


@contextmanager
def ambient_metadata(source: Metadata | Callable[[], Metadata]) -> Iterator[None]:
    """Make ``source`` ambient. A callable is called when a command is sent: a request's user may be known late."""
    token = _ambient.set(source)
    try:
        yield
    finally:
        _ambient.reset(token)
