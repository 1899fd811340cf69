"""Replace ``type`` aliases in the annotation of a field by what they stand for."""

from __future__ import annotations

import operator
import types
import typing
from typing import Any

from enode_django.domain.scalars import UnsupportedType, is_literal


def without_aliases(annotation: Any, within: tuple[Any, ...] = ()) -> Any:
    """Return the annotation itself if it names no alias. ``within`` are the aliases that are being replaced.

    Raises `UnsupportedType` for an alias that contains itself.
    """
    if hasattr(annotation, "__value__"):  # type Money = Decimal
        if annotation in within:
            raise UnsupportedType(f"{annotation} cannot be stored: it contains itself")
        return without_aliases(annotation.__value__, (*within, annotation))
    arguments = typing.get_args(annotation)
    if not arguments or is_literal(annotation):
        return annotation
    replaced = tuple(without_aliases(argument, within) for argument in arguments)
    if all(map(operator.is_, replaced, arguments)):
        return annotation
    return operator.getitem(_generic(annotation), replaced[0] if len(replaced) == 1 else replaced)


def _generic(annotation: Any) -> Any:
    origin = typing.get_origin(annotation)
    return typing.Union if origin is types.UnionType else origin
