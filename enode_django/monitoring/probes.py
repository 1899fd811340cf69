"""The pages of the health port of ``runprocessors`` and ``runbroker``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from enode_django.exceptions import ConfigurationError
from enode_django.monitoring.probing import Page, Pages, ProbeServer, verdict

LIVE, READY, METRICS = "/live", "/ready", "/metrics"
LOOPBACK = "127.0.0.1"
BROKER_TURNS_WITHIN = 30.0
"""Seconds. The broker's loop reports every second."""

Reasons = Callable[[], list[str]]
"""Returns the reasons why a process is not live, or not ready; empty if it is."""


class Listening(NamedTuple):
    """The address at which pages are served."""

    address: str
    port: int


def health_pages(is_not_live: Reasons, is_not_ready: Reasons) -> Pages:
    return {LIVE: lambda: verdict(is_not_live()), READY: lambda: verdict(is_not_ready())}


def metrics_page(figures: Callable[[], Mapping[str, Any]], *, needed: bool) -> Pages:
    """Return the page of metrics. Without prometheus-client, raise `ConfigurationError` if the page is ``needed``, else
    return no page."""
    try:
        from enode_django.monitoring.prometheus import CONTENT_TYPE, exposition
    except ImportError as error:
        if not needed:
            return {}
        raise ConfigurationError(
            '--metrics-port needs the package prometheus-client; install it: pip install "enode_django[metrics]"'
        ) from error
    return {METRICS: lambda: Page(exposition(figures()), content_type=CONTENT_TYPE)}


@contextmanager
def serving(pages: Pages, *places: Listening | None) -> Iterator[list[ProbeServer]]:
    """Serve the same pages at all places while the block runs. Equal places are served once. Raises
    `ConfigurationError` if a place cannot be listened on."""
    servers: list[ProbeServer] = []
    try:
        for place in dict.fromkeys(place for place in places if place is not None):
            servers.append(ProbeServer(place.address, place.port, pages))
        yield servers
    finally:
        for server in servers:
            server.stop()


class BrokerHealth:
    """Set by the broker's loop, read by any thread."""

    def __init__(self) -> None:
        self._turned_at = time.monotonic()
        self._is_serving = False

    def turned(self) -> None:
        self._turned_at = time.monotonic()

    def ready(self) -> None:
        self._is_serving = True

    def stopping(self) -> None:
        self._is_serving = False

    def is_not_live(self) -> list[str]:
        return ["the broker hangs"] if time.monotonic() - self._turned_at > BROKER_TURNS_WITHIN else []

    def is_not_ready(self) -> list[str]:
        return [*self.is_not_live(), *([] if self._is_serving else ["the broker takes no connections"])]
