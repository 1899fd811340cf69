"""Prefixes of ids. Ids are unique across all types of aggregates; a prefix for each class keeps them apart."""

from __future__ import annotations

from typing import Any

from enode_django.domain.handlers import Handler, command_handlers
from enode_django.domain.messages import Command
from enode_django.exceptions import DefinitionError, DuplicateHandler, HandlerNotFound, InvalidId, shown
from enode_django.ids import check_id


def check_prefix(cls: Any) -> None:
    """Raise `DefinitionError` unless an id can begin with the class's ``id_prefix``."""
    prefix = cls.id_prefix
    try:
        if prefix != "":
            check_id(f"{prefix}x" if isinstance(prefix, str) else prefix)
    except InvalidId as error:
        raise DefinitionError(
            f'{cls.__qualname__} has id_prefix = {shown(prefix)}; give a text such as "account-", or "" for none'
        ) from error


def check_sought(cls: Any, id: str) -> None:
    """Raise `InvalidId` unless the id has the prefix of this class or of a subclass."""
    if not (id.startswith(cls.id_prefix) or id.startswith(tuple(_others(cls)))):
        check_prefixed(cls, id)


def _others(cls: Any) -> set[str]:
    """Return the prefixes of subclasses that differ from that of the class."""
    found = {prefix for each in cls.__subclasses__() for prefix in (each.id_prefix, *_others(each))}
    return found - {cls.id_prefix}


def check_prefixed(cls: Any, id: object) -> None:
    """Raise `InvalidId` unless this is a valid id of the class, with its prefix."""
    checked = check_id(id, "aggregate root id")
    prefix = cls.id_prefix
    if prefix and not (checked.startswith(prefix) and len(checked) > len(prefix)):
        raise InvalidId(
            f"{shown(checked)} cannot be an id of {cls.__qualname__}: such ids begin with {prefix!r}; "
            f"write {cls.__qualname__}.id_prefix + {shown(checked.removeprefix(prefix))}"
        )


def with_prefix(cls: Any, id: str) -> str:
    """Return the id with the prefix of this class in front, unless it begins with that, or with the prefix of a
    subclass.

    >>> class Account:
    ...     id_prefix = "account-"
    >>> with_prefix(Account, "ada"), with_prefix(Account, "account-ada")
    ('account-ada', 'account-ada')
    """
    known = (cls.id_prefix, *filter(None, _others(cls)))
    return id if id.startswith(known) else f"{cls.id_prefix}{id}"


def target_of(command: type[Command], id: Any) -> Any:
    """Complete the aggregate's id of a command by `with_prefix` if a method of an aggregate handles the command. The
    class is unknown if a function handles it; the id is then returned unchanged."""
    owner = getattr(_handler_of(command), "_enode_aggregate", None)
    return with_prefix(owner, id) if owner is not None and type(id) is str and id else id


def check_creates(command: type[Command]) -> None:
    """Raise `DefinitionError` if a method handles the command that makes no aggregate, so that it needs the id of a
    stored one. A function may do either, and so may a handler that this process does not know."""
    handler: Any = _handler_of(command)
    if getattr(handler, "_enode_creates", True):
        return
    raise DefinitionError(
        f"{command.__qualname__} is for a stored aggregate, as {handler.__qualname__}() is not marked with "
        "creates=True; give aggregate_root_id to the form, or to save() or command() of the serializer; a CommandView "
        "takes it from the URL's argument that its aggregate_url_kwarg names"
    )


def _handler_of(command: type[Command]) -> Handler | None:
    try:
        return command_handlers.find(command)
    except (DefinitionError, DuplicateHandler, HandlerNotFound):
        return None
