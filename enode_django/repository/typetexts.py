"""Annotations as texts: the same for the same type, in every process, however it was imported."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any

from enode_django.domain.aliases import without_aliases


def type_text(annotation: Any) -> str:
    """Return a text, the same for ``Optional[List["int"]]`` and ``list[int] | None``. Classes are their qualified
    names."""
    annotation = without_aliases(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(map(type_text, arguments)))
    if origin is not None:
        return f"{type_text(origin)}[{', '.join(map(type_text, arguments))}]"
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def value_classes(annotation: Any) -> list[type]:
    """Return the enums and dataclasses that an annotation names."""
    annotation = without_aliases(annotation)
    found = [cls for argument in typing.get_args(annotation) for cls in value_classes(argument)]
    if isinstance(annotation, type) and (issubclass(annotation, Enum) or dataclasses.is_dataclass(annotation)):
        found.append(annotation)
    return found
