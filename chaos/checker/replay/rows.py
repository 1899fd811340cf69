from __future__ import annotations

from typing import Protocol

from chaos.checker.decoding import Contents


class Row(Protocol):
    """The interface of a stored row for a replay. ``created_at`` is in microseconds since 1970."""

    @property
    def aggregate_root_type(self) -> str: ...

    @property
    def aggregate_root_id(self) -> str: ...

    @property
    def version(self) -> int | None: ...

    @property
    def command_id(self) -> str: ...

    @property
    def command_type(self) -> str: ...

    @property
    def created_at(self) -> int: ...

    @property
    def contents(self) -> Contents: ...
