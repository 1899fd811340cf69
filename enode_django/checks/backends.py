"""System checks of the queue, event store and middleware in the settings. ``docs/reference/checks.md`` has every id.

The checks connect to nothing. They pass over settings that are left out, so that a project with the defaults imports
no driver for its checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error

from enode_django import conf as settings
from enode_django.conf import groups
from enode_django.exceptions import ConfigurationError


def check_backends(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    try:
        return [*_queue(), *_store(), *_middleware()]
    except ConfigurationError:  # E001 says so
        return []


def _queue() -> Iterator[CheckMessage]:
    if not settings.given().get("QUEUE", {}).keys() & {"BACKEND", "LOCATION", "OPTIONS"}:
        return
    from enode_django.runtime import has_queue, import_queue_backend, make_transport

    try:
        import_queue_backend()
    except ConfigurationError as error:
        known = " or ".join(map(repr, [*groups.LOCATIONS, groups.IMMEDIATE]))
        yield Error(f"{error}.", hint=f"Name {known}, or a transport of your own.", id="enode_django.E080")
        return
    if not has_queue():
        yield from _no_queue()
        return
    try:
        make_transport().close()
    except ConfigurationError as error:
        yield Error(
            f"ENODE['QUEUE'] cannot be used: {error}.",
            hint="LOCATION depends on the BACKEND: "
            + ", ".join(f"{location!r} of {backend}" for backend, location in groups.LOCATIONS.items())
            + "; OPTIONS are its keyword arguments.",
            id="enode_django.E081",
        )


def _no_queue() -> Iterator[CheckMessage]:
    useless = sorted({"LOCATION", "OPTIONS", "ALLOCATION"} & settings.given()["QUEUE"].keys())
    if useless:
        yield Error(
            f"ENODE['QUEUE'] has {', '.join(useless)}, but its BACKEND is not a queue and takes none.",
            hint="Leave them out, or name the transport that they are for.",
            id="enode_django.E190",
        )


def _store() -> Iterator[CheckMessage]:
    if "BACKEND" not in settings.given().get("EVENT_STORE", {}):
        return
    from enode_django.runtime import import_store_backend

    try:
        import_store_backend()
    except ConfigurationError as error:
        yield Error(
            f"{error}.", hint=f"Name {groups.POSTGRES!r}, or an event store of your own.", id="enode_django.E082"
        )


def _middleware() -> Iterator[CheckMessage]:
    for key in ("COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"):
        paths = getattr(settings.conf(), key)
        if not paths or not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            continue  # E085 says what is wrong
        from enode_django.bus.interception import factories

        try:
            factories(key)
        except ConfigurationError as error:
            yield Error(
                f"{error}.",
                hint="List dotted paths of functions or classes that take the next handler and return a handler.",
                id="enode_django.E210",
            )
