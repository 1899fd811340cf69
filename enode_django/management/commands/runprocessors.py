"""``manage.py runprocessors``."""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from enode_django.checks.store import narrow_encoding
from enode_django.concurrency.backoff import once
from enode_django.concurrency.cores import usable_cores
from enode_django.conf import conf
from enode_django.conf.groups import POSTGRES, REDIS_STREAMS, Conf
from enode_django.databases import migrate_command
from enode_django.equeue.transport import Transport
from enode_django.eventing.unowned import possible_databases, unowned_in
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, remedy
from enode_django.exceptions import (
    ConfigurationError,
    QueueError,
    ShardMismatch,
    StoreUnavailable,
    SubscriberUnavailable,
    TransportUnavailable,
)
from enode_django.management.observing import add_port, listening, observed_processors
from enode_django.management.output import PrintableCommand
from enode_django.management.own_broker import check_would_be_found
from enode_django.management.systems import check_linux
from enode_django.models import Checkpoint, EventCorrection, EventStream, Shard
from enode_django.processes.children import STOP_SIGNALS, Children, receive_signals, stop_signals_blocked
from enode_django.processes.template import make_children
from enode_django.processors.broker import BrokerProcess
from enode_django.processors.connections import Share, connections_by_database
from enode_django.processors.control import Role
from enode_django.processors.logs import log_to_console
from enode_django.processors.outbox_relay import relayed_outboxes
from enode_django.processors.reloading import is_inner, run_reloading
from enode_django.processors.supervisor import BEYOND_GRACE, Supervisor, supervisor_name
from enode_django.processors.supervisor_reports import STOP_SECONDS
from enode_django.processors.worker_group import Plan
from enode_django.runtime import make_store, make_subscription, make_transport, running_subscribers, time_limits

logger = logging.getLogger("enode_django.supervisor")

ALL = "all"
NOTHING_TO_FOLLOW = (
    "no subscriber is declared, so event workers would have nothing to do; declare a ModelProjection or a Projection "
    "(in projections.py of an installed app), a ProcessManager (process_managers.py) or an @event_handler "
    "(event_handlers.py)"
)


class Unreachable(CommandError):
    pass


class Command(PrintableCommand):
    help = "Runs worker processes that handle commands and run the subscribers, until SIGTERM or SIGINT."
    is_service = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._supervisor: Supervisor | None = None
        self._has_supervised = threading.Event()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--processes",
            type=int,
            help="worker processes of each role; by default as the settings say, or one for each usable core",
        )
        parser.add_argument(
            "--role",
            choices=[*(each.value for each in Role), ALL],
            default=ALL,
            help="command: handle commands; event: run projections, process managers and event handlers; all: both",
        )
        parser.add_argument("--with-broker", action="store_true", help="run the queue's broker too, in a child process")
        parser.add_argument("--reload", action="store_true", help="restart when code changes (for development)")
        parser.add_argument("--report", type=Path, help="write the current figures to this file, as JSON")
        add_port(parser, "metrics", "/metrics, in the format of Prometheus,")
        add_port(parser, "health", "/live and /ready, and /metrics if prometheus-client is installed,")

    def handle(self, *, reload: bool, with_broker: bool, verbosity: int, **options: Any) -> None:
        check_linux("runprocessors")
        receive_signals()
        log_to_console(verbosity)
        # The reloader has two processes. The outer one runs the broker, since it lives as long as the command.
        hosts = with_broker and not (reload and is_inner())
        if hosts:
            self._check_broker()
        children = make_children(conf())
        with ExitStack() as stack:
            if reload and is_inner():
                atexit.register(children.close)  # by then the supervising thread starts no more children
            else:
                stack.callback(children.close)
            broker = stack.enter_context(self._broker(stack, children, verbosity)) if hosts else None
            if reload:
                look: Callable[[], None] = broker.look if broker is not None else lambda: None
                options.update(children=children, broker=None, verbosity=verbosity)
                status = run_reloading(self._supervise_in_thread, look, self._end_supervising, **options)
                if status:
                    raise SystemExit(status)
            else:
                self.supervise(children=children, broker=broker, verbosity=verbosity, **options)

    def _check_broker(self) -> None:
        """Check the settings before the broker starts."""
        if conf().QUEUE.BACKEND == REDIS_STREAMS:
            raise CommandError(f"ENODE['QUEUE'] names {REDIS_STREAMS!r}, which uses no broker; leave out --with-broker")
        with closing(self._make_transport()) as transport:
            check_would_be_found(conf(), transport)

    @contextmanager
    def _broker(self, stack: ExitStack, children: Children, verbosity: int) -> Iterator[BrokerProcess]:
        with stop_signals_blocked():  # a broker that was started is stopped, whatever comes
            broker = BrokerProcess(conf(), children, verbosity=verbosity)
            stack.callback(broker.stop)  # the caller's: a signal may come before it has entered this context
            _exit_at_a_signal()
        try:
            self.stdout.write(f"the broker listens on {broker.wait_ready()}")
            yield broker
        except (ConfigurationError, TransportUnavailable) as error:
            raise CommandError(str(error)) from error

    def supervise(
        self,
        *,
        children: Children,
        broker: BrokerProcess | None,
        processes: int | None,
        role: str,
        report: Path | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        current = conf()
        count = (current.WORKERS.PROCESSES or usable_cores()) if processes is None else processes
        if count < 1:
            raise CommandError(f"--processes must be at least 1, got {count}")
        transport = self._make_transport()
        plans = self._prepare_topics(current, transport, _roles(role), count)
        self._prepare_databases(current, plans, transport)
        name, write = supervisor_name(), _Reporter(report)
        observed = self._observed(current, name, transport, options, has_broker=broker is not None)
        with closing(transport), observed as look, relayed_outboxes(transport):

            def on_report(figures: dict[str, Any]) -> None:
                write(figures)
                look(figures)

            supervisor = Supervisor(
                *(current, plans, transport, children),
                broker=broker,
                name=name,
                verbosity=verbosity,
                on_report=on_report,
            )
            self._handle_signals(supervisor)
            self._say_plans(plans)
            self._supervisor = supervisor
            status = supervisor.run()
        if status:
            raise SystemExit(status)

    @contextmanager
    def _observed(
        self, current: Conf, name: str, transport: Transport, options: dict[str, Any], *, has_broker: bool
    ) -> Iterator[Callable[[dict[str, Any]], None]]:
        try:
            with observed_processors(
                *(current, name, transport, make_store()),
                health=listening(options, "health"),
                metrics=listening(options, "metrics"),
                has_broker=has_broker,
                say=self.say,
            ) as look:
                yield look
        except ConfigurationError as error:
            raise CommandError(str(error)) from error

    @staticmethod
    def _handle_signals(supervisor: Supervisor) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                signal.signal(number, lambda *_: supervisor.stop())
        # Otherwise the reloader has the main thread and the signals, and calls `_end_supervising`.

    def _supervise_in_thread(self, **options: Any) -> None:
        try:
            self.supervise(**options)
        finally:
            self._has_supervised.set()

    def _end_supervising(self) -> None:
        """Stop the supervisor in the other thread. Block until its workers have ended and its last report is written,
        within limits: without that report the next status would show it as silent."""
        if self._supervisor is not None:
            self._supervisor.stop()
            self._has_supervised.wait(conf().WORKERS.GRACE + BEYOND_GRACE + STOP_SECONDS)

    def _make_transport(self) -> Transport:
        try:
            make_store()
            return make_transport()
        except ConfigurationError as error:
            raise CommandError(f"{error}\nsee ENODE in the settings") from error

    def _prepare_topics(self, current: Conf, transport: Transport, roles: Sequence[Role], processes: int) -> list[Plan]:
        topics = {Role.COMMAND: current.COMMANDS.TOPIC, Role.EVENT: current.SUBSCRIBERS.TOPIC}
        try:
            queues = {topic: transport.create_topic(topic, current.QUEUE.QUEUES_PER_TOPIC) for topic in topics.values()}
        except (QueueError, ConfigurationError) as error:
            hint = "" if "ENODE['QUEUE']" in str(error) else "\nsee ENODE['QUEUE'] in the settings"
            raise CommandError(f"{error}{hint}") from error
        limits = time_limits(current)
        groups = {Role.COMMAND: [current.COMMANDS.CONSUMER_GROUP], Role.EVENT: [*limits]}
        seconds = {Role.COMMAND: [], Role.EVENT: [*limits.values()]}
        return [
            Plan(role, processes, topics[role], queues[topics[role]], groups[role], seconds[role]) for role in roles
        ]

    def _say_plans(self, plans: Sequence[Plan]) -> None:
        if any(plan.role is Role.EVENT for plan in plans):
            self.stdout.write(f"subscribers: {', '.join(subscriber.name for subscriber in running_subscribers())}")
        texts = [
            f"{plan.processes} {plan.role} workers, {plan.queues} queues of topic {plan.topic!r}" for plan in plans
        ]
        self.stdout.write("; ".join([*texts, "Ctrl-C stops"]))

    # -- databases ------------------------------------------------------------------------------------------------

    def _prepare_databases(self, current: Conf, plans: Sequence[Plan], transport: Transport) -> None:
        """Check the databases, let new subscribers begin there, and say how many connections the workers take."""
        try:
            self._check_shards(current)
            if any(plan.role is Role.EVENT for plan in plans):
                for subscriber in running_subscribers():
                    self._check_table(f"database of {subscriber.name}", subscriber.database, Checkpoint._meta.db_table)
                check_owners()
                begin_subscribers(transport)
            for alias, shares in connections_by_database(current, plans, running_subscribers()).items():
                self._say_shares(alias, shares)
        finally:
            connections.close_all()

    def _check_shards(self, current: Conf) -> None:
        """Check the databases and ownership of the event store. One of several may be away: its aggregates wait."""
        aliases = current.EVENT_STORE.DATABASES
        for alias in aliases:
            try:
                if narrow := narrow_encoding(alias):
                    raise CommandError(f"the event database {alias!r} {narrow}; make it anew with UTF8")
                for model in (EventStream, EventCorrection, Shard):
                    self._check_table("event database", alias, model._meta.db_table)
            except Unreachable as error:
                if len(aliases) == 1:
                    raise
                self.stdout.write(str(error), self.style.WARNING)
        if current.EVENT_STORE.BACKEND == POSTGRES:
            try:
                ShardMap(aliases).load()
            except (ShardMismatch, StoreUnavailable) as error:
                raise CommandError(str(error)) from error

    def _check_table(self, what: str, alias: str, table: str) -> None:
        try:
            tables = connections[alias].introspection.table_names()
        except DatabaseError as error:
            raise Unreachable(f"the {what} {alias!r} cannot be reached: {error}") from error
        if table not in tables:
            raise CommandError(f"the {what} {alias!r} has no table {table!r}; run {migrate_command(alias)}")

    def _say_shares(self, alias: str, shares: Sequence[Share]) -> None:
        if connections[alias].vendor != "postgresql":
            return
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT current_setting('max_connections')::int")
                (limit,) = cursor.fetchone()
        except DatabaseError:
            return  # `_check_shards` has warned
        total = sum(share.total for share in shares)
        terms = " + ".join(f"{share.processes} × {share.each}" for share in shares)
        text = f"up to {terms} = {total} connections to {alias!r}, whose server allows {limit}"
        if total <= limit:
            self.stdout.write(text)
        else:
            self.stdout.write(f"{text}: too many, unless a pooler shares them", self.style.WARNING)


def _roles(chosen: str) -> list[Role]:
    """Return the roles to run. Raises `CommandError` if only event workers were chosen, and there is no subscriber."""
    if chosen == Role.COMMAND:
        return [Role.COMMAND]
    if running_subscribers():
        return [Role.EVENT] if chosen == Role.EVENT else [Role.COMMAND, Role.EVENT]
    if chosen == Role.EVENT:
        raise CommandError(NOTHING_TO_FOLLOW)
    return [Role.COMMAND]


def check_owners() -> None:
    """Raise `CommandError` if a stored subscription has no subscriber in the code, and is not kept. A subscriber that
    was renamed without an alias would handle everything again under its new name."""
    try:
        found = unowned_in(possible_databases())
    except DATABASE_ERRORS as error:
        raise CommandError(f"stored subscriptions cannot be read: {error}{remedy(error)}") from error
    if refused := [one.text for one in found if one.kept_since is None]:
        raise CommandError("\n".join(refused))


def begin_subscribers(transport: Transport) -> None:
    """Let new subscribers begin before a command worker stores events, which would count as handled otherwise. Raises
    `CommandError`."""
    store = make_store()
    for subscriber in running_subscribers():
        try:
            make_subscription(subscriber, transport, store, persist=once).begin()
        except (*DATABASE_ERRORS, StoreUnavailable, SubscriberUnavailable) as error:
            raise CommandError(f"{subscriber.name} cannot begin: {error}{remedy(error)}") from error


def _exit_at_a_signal() -> None:
    """Let the first stop signal end the command before there are workers. Later ones must not interrupt its end."""

    def leave(number: int, frame: object) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(0)

    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, leave)


class _Reporter:
    """Writes the report to another file and renames it, so that a reader never sees half a report."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: dict[str, Any] = {}

    def __call__(self, report: dict[str, Any]) -> None:
        if self._path is None or report == self._last:
            return
        self._last = report
        aside = self._path.with_suffix(f".{os.getpid()}")
        try:
            aside.write_text(json.dumps(report))
            aside.replace(self._path)
        except OSError as error:  # a full disk must not end the workers
            logger.warning("the report cannot be written: %s", error)
