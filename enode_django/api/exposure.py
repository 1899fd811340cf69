"""Which commands the API takes, and from whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from rest_framework.permissions import BasePermission

from enode_django.conf import conf
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import Command
from enode_django.exceptions import ConfigurationError, HandlerNotFound, UnknownMessageType
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from rest_framework.request import Request

DEFAULT = ("enode_django.send_command",)


class Offered(NamedTuple):
    """A class of commands, and what decides who may send one: makers of DRF permissions, at least one."""

    cls: type[Command]
    permissions: Sequence[Any]


class _HasPermission(BasePermission):
    """Requires one of Django's permissions. A superuser has them all."""

    def __init__(self, name: str) -> None:
        self.name = name

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.is_authenticated and request.user.has_perm(self.name))


class MaySendSomething(BasePermission):
    """Requires somebody who is authenticated, or a command that a stranger has the permissions for. Reads no body, as
    far as the commands' own permissions read none."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.user and request.user.is_authenticated:
            return True
        return any(
            all(permission().has_permission(request, view) for permission in one.permissions)
            for _, one in all_offered()
        )


def offered(type_name: str) -> Offered | None:
    """None for a name that no command has, and for a command that is not offered. Raises `ConfigurationError`."""
    found = _offered.get(type_name)
    if found is None:
        found = _look_up(type_name)
        if found is not None:
            _offered[type_name] = found
    return found


def all_offered() -> Iterator[tuple[str, Offered]]:
    """By type name, aliases left out."""
    for cls, name in sorted(types.names().items(), key=lambda pair: pair[1]):
        if issubclass(cls, Command) and (found := offered(name)) is not None:
            yield name, found


def _look_up(type_name: str) -> Offered | None:
    try:
        cls = types.class_of(Command, type_name)
        command_handlers.find(cls)
    except (UnknownMessageType, HandlerNotFound):
        return None
    given = _given(cls, types.name_of(cls))
    return Offered(cls, [_maker(each) for each in given]) if given else None


def _given(cls: type[Command], name: str) -> Sequence[Any]:
    """The nearest decides: the settings for the very class, the class, the settings for its app, for all. So an
    internal command is offered only where the settings name it."""
    commands = conf().API.COMMANDS
    label = name.rpartition(".")[0]
    if name in commands:
        return commands[name] or ()
    if not cls.exposed:
        return ()
    if hasattr(cls, "api_permissions"):
        return cls.api_permissions or ()
    for pattern in (f"{label}.*", "*"):
        if pattern in commands:
            return commands[pattern] or ()
    return DEFAULT


def _maker(permission: Any) -> Any:
    """A permission class, or what is called like one; its dotted path; or the name of one of Django's permissions,
    which begins with a small letter behind the last dot, as no class does."""
    if not isinstance(permission, str):
        return permission
    if not permission.rpartition(".")[2][:1].isupper():
        return lambda: _HasPermission(permission)
    try:
        return import_string(permission)
    except ImportError as error:
        raise ConfigurationError(f"ENODE API names {permission!r}, which cannot be imported: {error}") from error


_offered: dict[str, Offered] = {}


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ENODE":
        _offered.clear()


setting_changed.connect(_forget)
