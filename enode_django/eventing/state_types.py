"""The states of processes as bytes: a format byte, then msgpack of ``{field: value}``, like the fields of messages.

Fields can be added: a stored state without them gets their defaults. Fields that this code does not know are kept as
they are when the state is stored again: newer code has added them, and runs beside this one during a deploy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from enode_django.domain.declarations import resolved_schema
from enode_django.domain.fields import Schema
from enode_django.exceptions import DefinitionError, InvalidField, MalformedMessage, shown
from enode_django.serialization.plain import pack, unpack

FORMAT = b"\x01"
JOINED = "@joined"
"""The stored field with the names of the classes whose events have come to handlers that join them."""


class StateType:
    """The dataclass of a process manager's states. The constructor raises `DefinitionError` if ``cls`` is no dataclass,
    is frozen, or has a field without a default."""

    def __init__(self, cls: Any, owner: str) -> None:
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise DefinitionError(f"{owner} has state = {shown(cls)}; give it a class marked with @dataclass")
        if cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise DefinitionError(f"{owner} has the state {cls.__qualname__}, which is frozen; its handlers change it")
        for field in dataclasses.fields(cls):
            if field.init is False:
                raise DefinitionError(f"{cls.__qualname__}.{field.name} has init=False, so it could not be restored")
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise DefinitionError(
                    f"{cls.__qualname__}.{field.name} has no default; a process begins with the defaults of its state"
                )
        self.cls = cls

    @cached_property
    def schema(self) -> Schema:
        """The fields, resolved at first use. Raises `DefinitionError`, which names an unstorable field."""
        return resolved_schema(self.cls)

    def check(self) -> None:
        """Raise `DefinitionError` for a field that cannot be stored."""
        assert self.schema

    def read(self, packed: bytes) -> Any:
        """Return the state; a new one for no bytes. Raises `MalformedMessage` and `InvalidField`."""
        fields = self.schema.decode(plain_state(packed)) if packed else {}
        try:
            return self.cls(**fields)
        except Exception as error:  # its own __post_init__
            raise InvalidField(f"{self.cls.__qualname__} refuses {shown(fields)}: {error}") from error

    def write(self, state: Any, over: bytes = b"", joined: Sequence[str] = ()) -> bytes:
        """Return the bytes of a state that was read from ``over``. Raises `InvalidField` for a value that does not fit
        its field."""
        unknown = {name: value for name, value in plain_state(over).items() if name not in self.schema.types}
        if joined:
            unknown[JOINED] = list(joined)
        fields = self.schema.checked({name: getattr(state, name) for name in self.schema.names})
        return FORMAT + pack({**unknown, **self.schema.encode(fields)})


def joined_in(packed: bytes) -> Sequence[str]:
    """Return the names of the classes of events that a stored state has joined. Raises `MalformedMessage`."""
    joined: Sequence[str] = plain_state(packed).get(JOINED, ())
    return joined


def plain_state(packed: bytes) -> dict[str, Any]:
    """Return the plain fields of a stored state, without its class; none for no bytes. Raises `MalformedMessage`."""
    if not packed:
        return {}
    fields = unpack(packed[1:]) if packed[:1] == FORMAT else None
    if type(fields) is not dict:
        raise MalformedMessage(
            f"a state of {len(packed)} bytes begins with {packed[:1]!r}, which is not a format of ours"
        )
    return fields
