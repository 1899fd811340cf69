"""Report the state of a running ``runprocessors`` or ``runbroker`` to probes, Prometheus and systemd."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from enode_django.conf.groups import Conf
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import EventStore
from enode_django.monitoring.gauges import Gauges
from enode_django.monitoring.probes import (
    LOOPBACK,
    BrokerHealth,
    Listening,
    health_pages,
    metrics_page,
    serving,
)
from enode_django.monitoring.probing import Pages, ProbeServer
from enode_django.processes.notifying import Notifier
from enode_django.processors.observing import Observations
from enode_django.processors.supervisor_reports import ReportWriter
from enode_django.runtime import make_dead_letters

Say = Callable[[str], object]


def add_port(parser: ArgumentParser, name: str, what: str) -> None:
    """Add the options ``--NAME-port`` and ``--NAME-address``."""
    parser.add_argument(f"--{name}-port", type=_port, metavar="PORT", help=f"serve {what} here (0: any free port)")
    parser.add_argument(f"--{name}-address", default=LOOPBACK, metavar="ADDRESS", help=f"by default {LOOPBACK}")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port; give a number from 0 to 65535")
    return int(text)


def listening(options: Mapping[str, Any], name: str) -> Listening | None:
    """Return the address and port of `add_port`'s options; None if no port is given."""
    port = options[f"{name}_port"]
    return None if port is None else Listening(options[f"{name}_address"], port)


@contextmanager
def observed_processors(
    conf: Conf,
    supervisor: str,
    transport: Transport,
    store: EventStore,
    *,
    health: Listening | None,
    metrics: Listening | None,
    say: Say,
    has_broker: bool = False,
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Serve the pages and write the reports of a supervisor while the block runs. Yield a function that the supervisor
    calls with its figures at each turn. Raises `ConfigurationError` if a port cannot be listened on, or metrics need a
    package that is missing."""
    topics = (conf.COMMANDS.TOPIC, conf.SUBSCRIBERS.TOPIC)
    gauges = Gauges(transport, make_dead_letters(store))
    observations = Observations(transport, topics, store, gauges, has_broker=has_broker)
    pages: Pages = {}
    if health is not None or metrics is not None:  # else prometheus-client is not imported
        pages = {
            **health_pages(observations.is_not_live, observations.is_not_ready),
            **metrics_page(observations.shown, needed=metrics is not None),
        }
    interval = conf.REPORTS.INTERVAL
    with ExitStack() as stack:
        servers = stack.enter_context(serving(pages, health, metrics))
        _say_places(servers, pages, say)
        if servers or interval is not None:
            observations.start(with_store=bool(servers))
            stack.callback(observations.stop)
        if interval is not None:
            writer = ReportWriter(supervisor, observations.figures, interval=interval, retention=conf.REPORTS.RETENTION)
            stack.callback(writer.stop)
        notifier = Notifier()

        def look(report: dict[str, Any]) -> None:
            observations.look(report)
            _notify(notifier, report)

        yield look


def _notify(notifier: Notifier, report: Mapping[str, Any]) -> None:
    workers = report["workers"] + report["event_workers"]
    if report["stopping"]:
        notifier.stopping()
    elif report["beating_workers"] >= report["planned_workers"] + report["planned_event_workers"]:
        notifier.ready()
    notifier.alive(f"{workers} workers, {report.get('finished', 0):,} commands finished")


def _say_places(servers: Sequence[ProbeServer], pages: Pages, say: Say) -> None:
    for server in servers:
        say(f"{', '.join(pages)} at {server.url}")


@contextmanager
def observed_broker(*, health: Listening | None, metrics: Listening | None, say: Say) -> Iterator[ObservedBroker]:
    """Serve the pages of a broker while the block runs. Raises `ConfigurationError`, as `observed_processors`."""
    observed = ObservedBroker()
    pages: Pages = {}
    if health is not None or metrics is not None:
        pages = observed.pages(with_metrics=metrics is not None)
    with serving(pages, health, metrics) as servers:
        _say_places(servers, pages, say)
        yield observed


class ObservedBroker:
    """Called by the broker's loop."""

    def __init__(self) -> None:
        self._health = BrokerHealth()
        self._notifier = Notifier()
        self._figures: Mapping[str, Any] = {}
        self.shows_figures = False

    def pages(self, *, with_metrics: bool) -> Pages:
        """Return the pages. Raises `ConfigurationError` if ``with_metrics`` needs a package that is missing."""
        metrics = metrics_page(lambda: self._figures, needed=with_metrics)
        self.shows_figures = bool(metrics)
        return {**health_pages(self._health.is_not_live, self._health.is_not_ready), **metrics}

    def measured(self, figures: Mapping[str, Any]) -> None:
        self._figures = {"broker": figures}

    def ready(self) -> None:
        self._health.ready()
        self._notifier.ready()

    def turned(self) -> None:
        self._health.turned()
        self._notifier.alive()

    def stopping(self) -> None:
        self._health.stopping()
        self._notifier.stopping()
