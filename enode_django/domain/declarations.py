"""Every aggregate, command, event and refusal class that was ever defined, in the order of definition.

The type registry (`enode_django.serialization.registry`) names them later, when Django knows its apps.
"""

from __future__ import annotations

_declared: list[type] = []


def declare(cls: type) -> None:
    _declared.append(cls)


def declared(since: int = 0) -> list[type]:
    """The classes declared from index ``since`` on."""
    return _declared[since:]
