"""Names on the classes that applications derive from: the framework's own, and those that a subclass may define.

The package's internals are functions of modules, or attributes that begin with `PREFIX`. All other attributes of a
class are its *public names*. ``_enode_settings`` and ``_enode_hooks`` list those that a subclass may define; the others
are taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import NamedTuple

from enode_django.exceptions import DefinitionError

PREFIX = "_enode_"
_METHODS = (FunctionType, staticmethod, classmethod, property)


class Names(NamedTuple):
    """The public names of a class and its bases, without special names (``__x__``)."""

    settings: frozenset[str]
    """Class attributes that a subclass may set. They are not fields."""
    hooks: frozenset[str]
    """Methods that a subclass may override, and settings that may be functions."""
    taken: frozenset[str]
    """Names that a subclass must not define as a field, a method, a property or another attribute."""


def names_of(cls: type) -> Names:
    """Return the names of the framework's classes among the bases of ``cls``."""
    own = list(_own_bases(cls))
    settings: frozenset[str] = frozenset().union(*(vars(base).get("_enode_settings", ()) for base in own))
    hooks: frozenset[str] = frozenset().union(*(vars(base).get("_enode_hooks", ()) for base in own))
    public = frozenset(name for base in own for name in _defined_in(base) if not _is_internal(name))
    return Names(settings, hooks, public - settings - hooks)


def check_names(cls: type, root: type, *, has_fields: bool) -> None:
    """Check the names of a new subclass of ``root``, and of its mixins. If ``has_fields``, annotations declare fields.

    Raises `DefinitionError` for a name that conflicts with one of the framework.
    """
    if _is_own(cls):
        return
    names = names_of(cls)
    for base in cls.__mro__:
        if base is cls or not (issubclass(base, root) or _is_own(base)):
            fields = _fields_of(base) if has_fields else set()
            for name in sorted(_defined_in(base)):
                fault = _fault(cls, base, name, name in fields, names)
                if fault:
                    shown = repr(name) if base is cls else f"{name!r} in its base {base.__qualname__}"
                    raise DefinitionError(f"{cls.__qualname__} {fault.format(shown)}")


def _fault(cls: type, base: type, name: str, is_field: bool, names: Names) -> str:
    """Return the fault of a name that ``base`` defines, as a format string for the name; empty if there is none."""
    if name.startswith(PREFIX):
        return f"defines {{}}, but names that begin with {PREFIX!r} are the framework's; choose another name"
    if is_field and name in names.settings:
        return "declares the field {}, but that is a setting; leave its annotation out, or choose another name"
    if is_field and name in names.hooks:
        return "declares the field {}, but that is a method of its base class; choose another name"
    if not (is_field or _defines(cls, base, name)):
        return ""
    if name in names.taken:
        return f"defines {{}}, which every {_owner(cls, name)} has already; choose another name"
    if name in names.settings - names.hooks and isinstance(vars(base).get(name), _METHODS):
        return "defines the method {}, but that is a setting; choose another name"
    return ""


def _defines(cls: type, base: type, name: str) -> bool:
    """Return True if ``cls`` gets the attribute from ``base``, or if no class has the attribute."""
    return next((one for one in cls.__mro__ if name in vars(one)), base) is base


def _owner(cls: type, name: str) -> str:
    """Return the nearest class of the framework that has the name, possibly from a base."""
    return next(base.__qualname__ for base in _own_bases(cls) if any(name in _defined_in(one) for one in base.__mro__))


def _own_bases(cls: type) -> Iterator[type]:
    return (base for base in cls.__mro__ if _is_own(base))


def _is_own(cls: type) -> bool:
    """Return True for classes of the framework and of Python: attributes of exceptions, too, cannot be fields."""
    return cls.__module__.startswith("enode_django.") or cls.__module__ == "builtins"


def _defined_in(cls: type) -> set[str]:
    return {*vars(cls), *inspect.get_annotations(cls)}


def _fields_of(cls: type) -> set[str]:
    return {name for name, annotation in inspect.get_annotations(cls).items() if "ClassVar" not in str(annotation)}


def _is_internal(name: str) -> bool:
    return name.startswith(PREFIX) or (name.startswith("__") and name.endswith("__"))
