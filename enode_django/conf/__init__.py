"""The dictionary ``ENODE`` of the settings, read when it is used, so that ``override_settings`` works.

`groups` has the keys, `rules` what their values may be.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import django
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from enode_django.conf.groups import GROUPS, IMMEDIATE, POSTGRES, Conf
from enode_django.conf.rules import Rule
from enode_django.exceptions import ConfigurationError

__all__ = ["conf"]


def given() -> Mapping[str, Any]:
    """Return ``settings.ENODE`` as it stands. Raises `ConfigurationError` if it, or a group of it, is not a mapping."""
    if not settings.configured and ENVIRONMENT_VARIABLE not in os.environ:
        _configure()
    value = getattr(settings, "ENODE", {})
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"ENODE must be a dictionary, got {_kind_of(value)}")
    for key in GROUPS:
        if not isinstance(value.get(key, {}), Mapping):
            raise ConfigurationError(f"ENODE[{key!r}] must be a dictionary, got {_kind_of(value[key])}")
    options = value.get("QUEUE", {}).get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"ENODE['QUEUE']['OPTIONS'] must be a dictionary, got {_kind_of(options)}")
    return value


def _kind_of(value: object) -> str:
    """Name the class of a value and not the value, which may be a URL with a password."""
    return f"a value of the class {type(value).__name__!r}"


def _configure() -> None:
    """Configure Django for a script without settings: this package alone, without a queue or a database."""
    settings.configure(INSTALLED_APPS=["enode_django"], ENODE={"QUEUE": {"BACKEND": IMMEDIATE}})
    django.setup()


@lru_cache(maxsize=1)
def conf() -> Conf:
    """Return the settings in force. Unknown keys are left to the system check that refuses them.

    For example::

        assert conf().COMMANDS.EXECUTE_TIMEOUT > 0
    """
    return make_conf(given())


def make_conf(values: Mapping[str, Any]) -> Conf:
    """Return the settings of a dictionary such as ``ENODE``."""
    groups = {key: _made(group, values.get(key, {})) for key, group in GROUPS.items()}
    return _made(Conf, {**values, **groups})


Made = TypeVar("Made")


def _made(cls: type[Made], values: Mapping[str, Any]) -> Made:
    return cls(**{key: _in_seconds(values[key]) for key in keys_of(cls) if key in values})


def keys_of(cls: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(cls)]


def _in_seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return type(value)(map(_in_seconds, value)) if type(value) in (list, tuple) else value


def broken_rules(current: Conf, groups: Collection[str]) -> Iterator[tuple[str, Any, Rule]]:
    """Yield, for each value of these groups that breaks a rule of its key, the key's place, the value and the rule.

    The other groups have their defaults, which keep the rules. Looking up the rules of a group takes longer than
    importing it.
    """
    yield from _broken_rules("ENODE", current)
    for key in filter(groups.__contains__, GROUPS):
        yield from _broken_rules(f"ENODE[{key!r}]", getattr(current, key))


def _broken_rules(name: str, group: Any) -> Iterator[tuple[str, Any, Rule]]:
    for key, hint in get_type_hints(type(group), include_extras=True).items():
        value = getattr(group, key)
        types = [hint, *get_args(hint)]
        rules = [rule for kind in types if get_origin(kind) is Annotated for rule in kind.__metadata__]
        if value is not None or type(None) not in types:
            yield from ((f"{name}[{key!r}]", value, rule) for rule in rules if not rule.accepts(value))


def keeps_in_memory() -> bool:
    """Return True if there is neither a queue nor a database, so that everything is in the memory of this process."""
    current = conf()
    backends = (current.QUEUE.BACKEND, current.EVENT_STORE.BACKEND)
    return backends == (IMMEDIATE, POSTGRES) and all(map(_is_dummy, current.EVENT_STORE.DATABASES))


def _is_dummy(alias: str) -> bool:
    return alias in connections and bool(connections.settings[alias]["ENGINE"] == "django.db.backends.dummy")


def imported(path: str, key: str) -> Any:
    """Return the callable that a dotted path in the settings names. Raises `ConfigurationError` if there is none."""
    try:
        found = import_string(path)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the settings may have any value
        missing = getattr(error, "name", None)
        how = '; install it: pip install "enode_django[redis]"' if missing == "redis" else ""
        raise ConfigurationError(f"ENODE {key} names {path!r}, which cannot be imported: {error}{how}") from error
    if not callable(found):
        raise ConfigurationError(f"ENODE {key} names {path!r}, which is not a class or function; name one")
    return found


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ENODE":
        conf.cache_clear()


setting_changed.connect(_forget)
