"""System checks of ``ENODE["API"]``. They do not import Django REST framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error
from django.utils.module_loading import import_string

from enode_django.conf import conf
from enode_django.exceptions import ConfigurationError


def check_api(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    try:
        commands = conf().API.COMMANDS
    except ConfigurationError:  # E001 says so
        return []
    if not isinstance(commands, Mapping):
        return [_wrong(commands, "a dictionary of lists by type name")]
    return [*_commands(commands)] if commands else []


def _commands(commands: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    from enode_django.domain.messages import Command  # a project without commands does not import the domain
    from enode_django.serialization.registry import types

    known = types.names_of(Command)
    labels = {name.rpartition(".")[0] for name in known} | {app.label for app in apps.get_app_configs()}
    for name, permissions in commands.items():
        if name != "*" and name not in known and not (str(name).endswith(".*") and name[:-2] in labels):
            yield Error(
                f"ENODE['API']['COMMANDS'] names {name!r}, but no command or app has that name.",
                hint="Write a type name such as 'bank.Deposit', 'bank.*' for those of an app, or '*'.",
                id="enode_django.E061",
            )
        if permissions is not None and not isinstance(permissions, list | tuple):
            yield _wrong(permissions, "a list of permissions")
            continue
        for permission in permissions or ():
            if not _can_be_had(permission):
                yield _wrong(permission, "the path of a class, or a permission of Django")


def _can_be_had(permission: Any) -> bool:
    if not isinstance(permission, str):
        return callable(permission)
    label, _, name = permission.rpartition(".")
    if not name[:1].isupper():
        return bool(label and name)
    try:
        import_string(permission)
    except ImportError:
        return False
    return True


def _wrong(value: object, wanted: str) -> Error:
    return Error(f"ENODE['API']['COMMANDS'] has {value!r}, which must be {wanted}.", id="enode_django.E060")
