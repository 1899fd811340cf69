"""System checks of ``manage.py check --deploy``. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.conf import settings as project
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from enode_django import conf as settings
from enode_django.concurrency.threads import start_thread
from enode_django.conf import groups
from enode_django.equeue.broker.options import is_loopback, parse_location
from enode_django.equeue.transport import TellsHazards, Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.runtime import has_queue, make_transport

PATIENCE = 10.0
"""Seconds that the queue has to answer."""
PATIENCE_FOR_HAZARDS = 5.0
"""Seconds that its servers have to tell how they may lose messages."""


def check_queue(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Ask the queue of the settings for its topics, and how it may lose messages. Blocks up to `PATIENCE`, and then
    `PATIENCE_FOR_HAZARDS`, whatever the transport's timeouts are. A queue whose hazards take longer can be used."""
    found: list[CheckMessage] = []
    answered = threading.Event()
    asking = start_thread("enode check of the queue", lambda: _ask(found, answered))
    if not answered.wait(PATIENCE):
        return [_unusable(f"no answer within {PATIENCE:.0f} s")]
    asking.join(PATIENCE_FOR_HAZARDS)
    return list(found)


def _ask(found: list[CheckMessage], answered: threading.Event) -> None:
    try:
        found.extend(_of_queue(answered.set))
    finally:
        answered.set()


def _of_queue(on_answer: Callable[[], object]) -> Iterator[CheckMessage]:
    try:
        if not has_queue():
            return
        with closing(make_transport()) as transport:
            transport.topics()
            on_answer()
            hazards = _hazards(transport)
    except Exception as error:  # a driver of the project may raise anything
        yield _unusable(str(error) or type(error).__name__)
        return
    for hazard in hazards:
        yield Warning(
            f"The queue of ENODE['QUEUE'] {hazard}, so commands and events that it has accepted may be lost.",
            hint="Configure it as the page on choosing a queue says, and use no cache for it; or silence the check.",
            id="enode_django.W037",
        )


def _hazards(transport: Transport) -> Sequence[str]:
    try:
        return transport.hazards() if isinstance(transport, TellsHazards) else ()
    except Exception as error:  # a driver of the project may raise anything
        return [f"does not tell how it may lose messages ({type(error).__name__}: {error})"]


def _unusable(failure: str) -> CheckMessage:
    return Error(
        f"The queue of ENODE['QUEUE'] cannot be used: {failure}.",
        hint="Start it, or correct BACKEND, LOCATION and OPTIONS.",
        id="enode_django.E029",
    )


def check_production(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Warn about settings that are for development only."""
    try:
        return [*_secret(), *_unencrypted(), *_immediate(), *_memory(), *_debug(), *_directory(), *_api()]
    except ConfigurationError:  # E001 says so
        return []


def _secret() -> Iterator[CheckMessage]:
    current = settings.conf()
    if current.QUEUE.BACKEND == groups.BROKER and not current.QUEUE.OPTIONS.get("secret"):
        yield Warning(
            "Workers and senders have no secret for the broker, so it can require none: whoever reaches it, if only "
            "from this machine, may send commands and read events.",
            hint="Give ENODE['BROKER']['SECRET'] and the option 'secret' of ENODE['QUEUE'] the same text.",
            id="enode_django.W032",
        )


def _unencrypted() -> Iterator[CheckMessage]:
    current = settings.conf()
    options = current.QUEUE.OPTIONS
    if current.QUEUE.BACKEND != groups.BROKER or not options.get("secret") or options.get("tls"):
        return
    with suppress(ConfigurationError):  # which E029 says
        host, _ = parse_location(current.QUEUE.LOCATION)
        if not is_loopback(host):
            yield Warning(
                f"Workers and senders connect to the broker at {host!r} without TLS: whoever is on the network between "
                "them can read their messages, and send in their name, in spite of the secret.",
                hint="Give ENODE['QUEUE'] the option 'tls': True, or the path of the authority's certificate as 'ca'.",
                id="enode_django.W099",
            )


def _immediate() -> Iterator[CheckMessage]:
    try:
        if has_queue():
            return
    except ConfigurationError:  # E080 says so
        return
    if settings.keeps_in_memory():
        yield Warning(
            "No database is configured: each process keeps events in its memory, and loses them when it ends.",
            hint="Name a PostgreSQL database in DATABASES.",
            id="enode_django.W191",
        )
    yield Warning(
        "The processes that send commands handle them, and let the subscribers follow. This mode is for small sites: "
        "it takes several queries for each command, and the sender waits for the subscribers.",
        hint="Leave ENODE['QUEUE']['BACKEND'] out and run processors for more than some ten commands a second, for "
        "slow subscribers, or for commands that must outlive an outage of the database. Otherwise silence this check.",
        id="enode_django.W190",
    )


def _memory() -> Iterator[CheckMessage]:
    current = settings.conf()
    for key, path, memory in (
        ("QUEUE", current.QUEUE.BACKEND, MemoryTransport),
        ("EVENT_STORE", current.EVENT_STORE.BACKEND, MemoryEventStore),
    ):
        if _is_a(path, memory):
            yield Warning(
                f"ENODE[{key!r}] is in memory: no other process sees it, and its contents end with the process.",
                hint="Name another BACKEND.",
                id="enode_django.W033",
            )


def _is_a(path: str, base: type) -> bool:
    with suppress(ImportError, TypeError, ValueError):  # E080 and E082 say so
        backend = import_string(path)
        return isinstance(backend, type) and issubclass(backend, base)
    return False


def _debug() -> Iterator[CheckMessage]:
    if project.DEBUG:
        yield Warning(
            "DEBUG is on: Django keeps the statements of every connection, which slows down processors.",
            hint="Set DEBUG = False where runprocessors runs.",
            id="enode_django.W034",
        )


def _directory() -> Iterator[CheckMessage]:
    current = settings.conf()
    if current.QUEUE.BACKEND != groups.BROKER or "DIRECTORY" in settings.given().get("BROKER", {}):
        return
    with suppress(ConfigurationError):  # which E029 says
        host, _ = parse_location(current.QUEUE.LOCATION)
        if is_loopback(host):
            yield Warning(
                "The broker keeps its messages in the default directory, beside the code: a new release may delete "
                "them.",
                hint="Name a directory that outlives releases in ENODE['BROKER']['DIRECTORY'].",
                id="enode_django.W035",
            )


def _api() -> Iterator[CheckMessage]:
    if find_spec("rest_framework") is None:
        return
    from rest_framework.permissions import AllowAny

    from enode_django.api.exposure import all_offered

    with suppress(ConfigurationError):  # a permission that cannot be imported permits nobody
        names = [name for name, one in all_offered() if all(each is AllowAny for each in one.permissions)]
        if names:
            yield Warning(
                f"The API takes commands from everybody, logged in or not: {', '.join(names)}.",
                hint="Give them another permission than AllowAny, in ENODE['API']['COMMANDS'] or api_permissions.",
                id="enode_django.W036",
            )
