"""The defaults of declared fields. A mutable default is made for each instance."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, cast

from enode_django.domain.scalars import Convert

MISSING: Any = dataclasses.MISSING
Make = Callable[[], Any]


@dataclasses.dataclass(slots=True, eq=False)
class Factory:
    """A default that is made for each instance."""

    make: Make

    def __call__(self) -> Any:
        return self.make()


@dataclasses.dataclass
class _Copied:
    """Copies a mutable default. Two are equal if their values are equal."""

    value: Any
    copy: Convert = dataclasses.field(compare=False, repr=False)

    def __call__(self) -> Any:
        return self.copy(self.value)


def made_anew(default: Any, copy: Convert | None) -> Factory | None:
    """Return a factory of a mutable default; None for an immutable one, and for one that already is a factory.

    ``copy`` is that of the field's type. The default of an aggregate's field need not be of that type.
    """
    if default is MISSING or isinstance(default, Factory):
        return None
    shallow = Factory(default.copy) if isinstance(default, list | dict | set) else None
    if copy is None or default is None or (shallow and not default):
        return shallow
    try:
        fits = type(copy(default)) is type(default)
    except Exception:  # a value of application code that does not fit
        fits = False
    return Factory(_Copied(default, copy)) if fits else shallow


def declared_defaults(cls: type, annotations: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a class with their declared defaults: a value, a `Factory`, or `MISSING`."""
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default_factory is not MISSING:
                yield field.name, Factory(cast(Make, field.default_factory))
            else:
                yield field.name, field.default
        return
    for name, annotation in annotations.items():
        if typing.get_origin(annotation) is ClassVar or annotation is ClassVar or name.startswith("_"):
            continue
        default = getattr(cls, name, MISSING)
        if isinstance(default, dataclasses.Field):
            made = default.default_factory is not MISSING
            default = Factory(cast(Make, default.default_factory)) if made else default.default
        yield name, default
