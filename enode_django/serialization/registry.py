"""The registry of stable type names and their classes.

A name is ``"<app_label>.<ClassName>"``, or the ``type_name`` of the class body, which is required outside of an app.
``aliases`` in the body are former names of the class; messages with such a name are read as the class. Commands,
events, refusals and aggregates have separate namespaces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TypeVar

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import aliases_of, declared
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.provided import LabelOf, provided
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import TypeNameError, UnknownMessageType

Kind = TypeVar("Kind", Command, DomainEvent, DomainException, AggregateRoot)
KINDS: tuple[type, ...] = (Command, DomainEvent, DomainException, AggregateRoot)


class TypeRegistry:
    def __init__(self, label_of: LabelOf = lambda module: None) -> None:
        self.label_of = label_of
        self._names: dict[type, str] = {}
        self._first_names: dict[type, str] = {}
        self._classes: dict[type, dict[str, type]] = {kind: {} for kind in KINDS}
        self._duplicates: dict[str, tuple[type, type]] = {}
        self._indexed = 0
        self._unnamed: list[type] = []
        self._lock = threading.Lock()

    def name_of(self, cls: type) -> str:
        """Return the name of a class. Raises `TypeNameError` if it cannot have one."""
        name = self._names.get(cls)
        if name is None:
            name = self._names[cls] = self._make_name(cls)
            self.index()
        return name

    def first_name_of(self, cls: type) -> str:
        """Return the oldest name of the class, which stays when the class is renamed. Raises `TypeNameError`."""
        first = self._first_names.get(cls)
        if first is None:
            first = self._first_names[cls] = next(iter(aliases_of(cls)), "") or self.name_of(cls)
        return first

    def stable_name_of(self, cls: type) -> str:
        """Return the oldest name of the class, or its qualified name if it cannot have one."""
        try:
            return self.first_name_of(cls)
        except TypeNameError:
            return cls.__qualname__

    def class_of(self, kind: type[Kind], name: str) -> type[Kind]:
        """Return the class by its name or one of its aliases.

        Raises `UnknownMessageType` (retriable: this process may be older than the message).
        """
        cls = self._classes[kind].get(name) or self.find(kind, name)
        if cls is None:
            raise UnknownMessageType(
                f"no {kind.__name__} is named {name!r}; if the class was renamed, add this name to its aliases; "
                "otherwise import its module, and name its app in INSTALLED_APPS"
            )
        return cls

    def find(self, kind: type[Kind], name: str) -> type[Kind] | None:
        """Return the class by its name or one of its aliases; None if this process has none."""
        classes = self._classes[kind]
        if name not in classes:
            self.index()
        return classes.get(name)

    def index(self) -> None:
        """Name the classes declared since the last call. Classes that cannot be named yet are tried again later."""
        with self._lock:
            fresh = self._unnamed + declared(self._indexed)
            self._indexed += len(fresh) - len(self._unnamed)
            self._unnamed = [cls for cls in fresh if not self._try_to_index(cls)]

    def _try_to_index(self, cls: type) -> bool:
        try:
            name = self._names.get(cls) or self._make_name(cls)
        except TypeNameError:
            return False
        self._names[cls] = name
        kind = next((kind for kind in KINDS if issubclass(cls, kind)), None)
        if kind is None:
            return True  # a base class of the framework
        classes = self._classes[kind]
        for known_as in (name, *aliases_of(cls)):
            other = classes.get(known_as)
            if other is not None and _place(other) != _place(cls):
                self._duplicates[known_as] = (other, cls)
            classes[known_as] = cls
        return True

    def _make_name(self, cls: type) -> str:
        given = cls.__dict__.get("type_name")
        if given:
            return str(given)
        if cls.__module__.startswith("enode_django."):
            return f"enode.{cls.__name__}"
        label = self.label_of(cls.__module__)
        if label is None:
            raise TypeNameError(
                f"{cls.__module__}.{cls.__qualname__} belongs to no installed app; "
                f'give it a name: type_name = "some_label.{cls.__name__}" in its body'
            )
        return f"{label}.{cls.__name__}"

    def duplicates(self) -> Iterator[tuple[str, type, type]]:
        self.index()
        for name, (one, other) in self._duplicates.items():
            yield name, one, other

    def unnamed(self) -> list[type]:
        """Return the classes that cannot be named, and so cannot be sent or stored."""
        self.index()
        return list(self._unnamed)

    def names_of(self, kind: type) -> list[str]:
        """Return all names of the classes of this kind, aliases included."""
        self.index()
        return list(self._classes[kind])

    def names(self) -> dict[type, str]:
        self.index()
        return dict(self._names)


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


types = TypeRegistry(lambda module: provided.label_of(module))
"""The registry of this process."""
