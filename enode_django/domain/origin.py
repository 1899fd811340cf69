"""The command that events come from. ``apply`` finds it without application code passing it on."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from enode_django.domain.metadata import EMPTY, Metadata


class Origin(Protocol):
    @property
    def command_id(self) -> str: ...

    @property
    def metadata(self) -> Metadata: ...


class KnownOrigin(NamedTuple):
    command_id: str = ""
    metadata: Metadata = EMPTY


NO_ORIGIN: Origin = KnownOrigin()


class HandledCommand(Origin, Protocol):
    @property
    def aggregate_root_id(self) -> str: ...

    def note_change(self, aggregate: Any, /) -> None:
        """Note that an aggregate begins to change while this command is handled."""

    def note_error(self, error: BaseException, /) -> None:
        """Note that applying an event has raised ``error``, so that the aggregate may be partly changed."""


handled_command: ContextVar[HandledCommand | None] = ContextVar("enode_handled_command", default=None)
"""Set while a command handler runs, in its thread."""
