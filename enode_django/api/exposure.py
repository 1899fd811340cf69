"""Find the commands that the API accepts, and their permissions."""

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
    """A class of commands that may be sent, and at least one factory of DRF permissions."""

    cls: type[Command]
    permissions: Sequence[Any]


class _HasPermission(BasePermission):
    """Requires a Django permission. A superuser has all."""

    def __init__(self, name: str) -> None:
        self.name = name

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.is_authenticated and request.user.has_perm(self.name))


class MaySendSomething(BasePermission):
    """Requires an authenticated user, or a command that anonymous clients may send. Reads no body, unless a command's
    own permissions do."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.user and request.user.is_authenticated:
            return True
        return any(
            all(permission().has_permission(request, view) for permission in one.permissions)
            for _, one in all_offered()
        )


def offered(type_name: str) -> Offered | None:
    """Return the command with this type name; None if there is none, if nothing handles it, or if it is not offered.
    Raises `ConfigurationError` for a permission that cannot be imported."""
    found = _offered.get(type_name)
    if found is None:
        found = _look_up(type_name)
        if found is not None:
            _offered[type_name] = found
    return found


def all_offered() -> Iterator[tuple[str, Offered]]:
    """Yield the offered commands in the order of their type names, without aliases. Raises `ConfigurationError`."""
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
    """Return the permissions of a command: the first that is set of the settings for the class, the class itself, the
    settings for its app, the settings for all, and `DEFAULT`. Empty ones mean that it is not offered. An internal
    command is offered only if the settings name it."""
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
    """Return a factory of permissions. ``permission`` is a permission class or another factory, the dotted path of one,
    or the name of a Django permission. A name has no capital letter after its last dot."""
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
