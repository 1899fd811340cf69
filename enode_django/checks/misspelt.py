"""The check for misspelt settings of classes. Python takes ``exposd = False`` for an attribute, and the setting keeps
its default. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from django.core.checks import CheckMessage, Warning

from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.names import names_of

_CLOSE = 0.8
_SHORT = 5
"""Settings of so few letters are like many other words."""


def misspelt_settings(cls: type) -> Iterator[CheckMessage]:
    """Warn about attributes without an annotation in the body of ``cls`` whose names are nearly those of settings."""
    settings, annotated = _settings_of(cls), inspect.get_annotations(cls)
    for name, value in vars(cls).items():
        if name.startswith("_") or name in settings or name in annotated or hasattr(value, "__get__"):
            continue
        setting = _meant(name, settings)
        if setting is not None:
            yield Warning(
                f"{cls.__module__}.{cls.__qualname__} has the attribute {name!r}, which is no setting: the "
                f"setting {setting!r} keeps its default.",
                hint=f"Write {setting}, if that is meant; or give the attribute another name.",
                obj=cls,
                id="enode_django.W177",
            )


def _meant(name: str, settings: Collection[str]) -> str | None:
    """Return the setting with the same letters, or a long one with nearly the same."""
    same = (one for one in settings if sorted(one) == sorted(name))
    close = get_close_matches(name, [one for one in settings if len(one) > _SHORT], n=1, cutoff=_CLOSE)
    return next(same, None) or next(iter(close), None)


def _settings_of(cls: type) -> set[str]:
    settings = {*names_of(cls).settings}
    if issubclass(cls, Command):
        settings.add("api_permissions")
    if issubclass(cls, DomainEvent):
        settings.add("applied")
    return settings
