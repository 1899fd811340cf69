"""Factories of a process's objects, which read the settings."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import Any, cast

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections, router

from enode_django.bus.command_bus import CommandBus, QueueCommandBus
from enode_django.bus.interception import subscriber_middleware
from enode_django.bus.notices import notices_through
from enode_django.bus.queue_sender import QueueSender
from enode_django.commanding.handler_retries import HandlerRetries
from enode_django.concurrency.backoff import Persist, once, until_it_works
from enode_django.conf import conf, imported, keeps_in_memory
from enode_django.conf.groups import Conf
from enode_django.databases import separate_connection
from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.effects import EffectProcessor, SendCommands, sending
from enode_django.eventing.event_processors import EventProcessor, RowProcessor, TransactionProcessor
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.multi_processor import MultiProcessor
from enode_django.eventing.multi_projections import MultiProjection
from enode_django.eventing.process_managers import can_resend, has_state
from enode_django.eventing.process_processor import ProcessProcessor
from enode_django.eventing.projections import ModelProjection, Projection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.replay import replay as replay_stored
from enode_django.eventing.resender import Resender
from enode_django.eventing.retry_decisions import CONFLICT_PATIENCE, RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.snapshot_processor import SnapshotProcessor
from enode_django.eventing.snapshot_subscriber import SnapshotSubscriber, snapshot_subscriber
from enode_django.eventing.subscribers import Subscriber, key_of
from enode_django.eventing.sweep import SweepingSubscription
from enode_django.eventstore.base import EventStore, Shard
from enode_django.eventstore.buckets import select_queue
from enode_django.eventstore.dead_letters import DeadLetters, MemoryDeadLetters, PostgresDeadLetters
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import ConfigurationError, SendInsideTest
from enode_django.outbox.relay import Relay
from enode_django.repository import policy
from enode_django.repository.postgres import PostgresSnapshotStore
from enode_django.repository.sharding import ShardedSnapshotStore
from enode_django.repository.states import SharedStates
from enode_django.repository.store import SnapshotStore
from enode_django.scheduling import rows as scheduling
from enode_django.scheduling.due import ChangeDeadlines

__all__ = [
    "close_bus",
    "make_snapshots",
    "make_states",
    "make_store",
    "make_transport",
    "replay",
    "subscribers",
    "use_bus",
]


def make_transport() -> Transport:
    """Return the transport of the settings; it connects when it is first used. Raises `ConfigurationError`.

    For example::

        with closing(make_transport()) as transport:
            print(transport.topics())
    """
    current, backend = conf(), import_queue_backend()
    if not _is_transport(backend):
        raise ConfigurationError(
            f'ENODE QUEUE["BACKEND"] is {current.QUEUE.BACKEND!r}: there is no queue, and nothing else to run, '
            "since the processes that send commands handle them; name a transport for a queue, or leave it out for the "
            "broker"
        )
    try:
        _check_options(backend, current.QUEUE.BACKEND, current.QUEUE.OPTIONS)
        transport: Transport = backend(current.QUEUE.LOCATION, **_allocation(backend), **current.QUEUE.OPTIONS)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f'ENODE QUEUE["BACKEND"] names {current.QUEUE.BACKEND!r}, which takes no location and options as a '
            f"transport does: {error}"
        ) from error
    return transport


def import_queue_backend() -> Any:
    """Return the object that ``QUEUE["BACKEND"]`` of the settings names. Raises `ConfigurationError`."""
    return imported(conf().QUEUE.BACKEND, 'QUEUE["BACKEND"]')


def has_queue() -> bool:
    """Return False if the process that sends a command also handles it. Raises `ConfigurationError`."""
    return _is_transport(import_queue_backend())


def make_transport_if_any() -> Transport:
    """Return the transport of the settings, or an empty one in memory. Raises `ConfigurationError`."""
    return make_transport() if has_queue() else MemoryTransport()


def _is_transport(backend: Any) -> bool:
    return not hasattr(backend, "make_bus")


def _allocation(backend: Any) -> dict[str, Any]:
    """Return the option ``allocate`` if the settings choose one and the driver takes it (a broker divides the queues
    itself). Raises `ConfigurationError`."""
    current = conf()
    divides = "allocate" in inspect.signature(backend).parameters and "allocate" not in current.QUEUE.OPTIONS
    return {"allocate": chosen_allocation(current)} if current.QUEUE.ALLOCATION is not None and divides else {}


def _check_options(backend: Any, path: str, options: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(backend).parameters.values())[1:]
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    if len(known) < len(parameters):
        return
    for key in options:
        if key not in known:
            raise ConfigurationError(
                f'ENODE QUEUE["OPTIONS"] has the key {key!r}, which {path} does not know; '
                f"it knows {', '.join(known) or 'none'}"
            )


def make_store(aliases: Sequence[str] = ()) -> EventStore:
    """Return the event store of the settings; it connects when it is first used. Raises `ConfigurationError`.

    ``aliases`` name other connections to the same databases, in the order of the settings.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        assert make_store().heads(["ada"]) == {"ada": 1}
    """
    current = conf()
    if keeps_in_memory():
        return _store_in_memory()
    backend = import_store_backend()
    aliases = aliases or current.EVENT_STORE.DATABASES
    if len(aliases) == 1:
        store: EventStore = backend(aliases[0])
        return store
    shard_map = ShardMap(aliases)
    return ShardedEventStore([backend(alias, shard_map) for alias in aliases], shard_map)


@cache
def _store_in_memory() -> EventStore:
    return MemoryEventStore()


def import_store_backend() -> Any:
    """Return the object that ``EVENT_STORE["BACKEND"]`` of the settings names. Raises `ConfigurationError`."""
    return imported(conf().EVENT_STORE.BACKEND, 'EVENT_STORE["BACKEND"]')


@contextmanager
def store_on_separate_connection() -> Iterator[EventStore]:
    """Open the event store over connections of its own. Reads from it are not part of a transaction that this thread
    has open in one of these databases."""
    with ExitStack() as stack:
        yield make_store([stack.enter_context(separate_connection(alias)) for alias in conf().EVENT_STORE.DATABASES])


def make_snapshots(store: EventStore) -> SnapshotStore | None:
    """Return the snapshot store for ``store``; None if the settings or all aggregate classes disable snapshots, or a
    shard is not in PostgreSQL.

    For example::

        snapshots = make_snapshots(make_store())
        if snapshots is not None:
            print(snapshots.versions(["ada"]))
    """
    if not conf().SNAPSHOTS.ENABLED or policy.lowest() is None:
        return None
    shards = [PostgresSnapshotStore(shard.alias) for shard in store.shards if isinstance(shard, PostgresEventStore)]
    if len(shards) < len(store.shards):
        return None
    return shards[0] if len(shards) == 1 else ShardedSnapshotStore(shards, store.place_of)


def needed_snapshots(store: EventStore) -> SnapshotStore:
    """Return the snapshot store for ``store``. Raises `ConfigurationError` if `make_snapshots` returns none."""
    snapshots = make_snapshots(store)
    if snapshots is None:
        raise ConfigurationError("snapshots are switched off: by SNAPSHOTS['ENABLED'], or by all classes")
    return snapshots


def make_dead_letters(store: EventStore) -> Sequence[DeadLetters]:
    """Return the dead letters of each shard of ``store``, for its commands that failed finally."""
    return [
        PostgresDeadLetters(shard.alias) if isinstance(shard, PostgresEventStore) else MemoryDeadLetters()
        for shard in store.shards
    ]


def make_states() -> SharedStates | None:
    """Return the shared states of the aggregate caches; None if the settings name no server. It connects when it is
    first used. Raises `ConfigurationError`.

    For example::

        states = make_states()
        if states is not None:
            print(states.load(["ada"]))
    """
    current = conf()
    if current.AGGREGATE_CACHE.LOCATION is None:
        return None
    make = imported("enode_django.repository.redis_states.RedisStates", 'AGGREGATE_CACHE["LOCATION"]')
    states: SharedStates = make(
        current.AGGREGATE_CACHE.LOCATION,
        secrets=[settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS],
        prefix=current.AGGREGATE_CACHE.PREFIX,
        ttl=current.AGGREGATE_CACHE.TTL,
    )
    return states


def running_subscribers() -> Sequence[Subscriber]:
    """Return the subscribers that event workers run: the project's, and the snapshot subscriber if there are
    snapshots."""
    ours = [] if make_snapshots(make_store()) is None else [snapshot_subscriber]
    return subscribers.running(*ours)


def time_limits(current: Conf) -> Mapping[str, float]:
    """Return the time limit in seconds for the events of one command, by the key of each running subscriber."""
    return {
        key_of(one): current.SUBSCRIBERS.TIME_LIMIT if one.time_limit is None else one.time_limit
        for one in running_subscribers()
    }


def make_producer(transport: Transport) -> Producer:
    """Return a producer of commands and events. An aggregate's queue follows from its bucket, like its shard.

    Raises `SendInsideTest` in a test, unless ``SEND_IN_TESTS`` of the settings is True.
    """
    if _is_test() and not conf().SEND_IN_TESTS:
        raise SendInsideTest(
            "a test would send to the queue of the settings, whose workers store in their database and not in the "
            "test's; put the sending inside enode_django.testing.inline(), take the pytest fixture enode_bus, or set "
            "ENODE['SEND_IN_TESTS'] = True for tests that mean the real queue"
        )
    return Producer(transport, queues=conf().QUEUE.QUEUES_PER_TOPIC, selector=select_queue)


def make_relay(alias: str, transport: Transport) -> Relay:
    """Return the relay of a database's outbox to the queue. Raises `SendInsideTest` as `make_producer` does."""
    return Relay(alias, QueueSender(make_producer(transport), conf().COMMANDS.TOPIC), schedule=scheduling)


def outbox_databases() -> Sequence[str]:
    """Return the aliases of the databases whose outbox is to be relayed, if they have one."""
    aliases = conf().OUTBOX.DATABASES
    return [alias for alias in connections if _may_have_outbox(alias)] if aliases is None else aliases


def _may_have_outbox(alias: str) -> bool:
    is_ours = connections[alias].vendor == "postgresql"
    return is_ours and router.allow_migrate(alias, "enode_django", model_name="outboxcommand")


def make_processor(
    subscriber: Subscriber, store: EventStore, send: SendCommands, change_deadlines: ChangeDeadlines = scheduling.change
) -> EventProcessor:
    """Return the event processor for a subscriber. Process managers send their commands through ``send``, those with a
    state inside the transaction, and write their deadlines by ``change_deadlines``.

    Raises `ConfigurationError`, also for middleware that cannot be made: at the first event that would count as an
    error of the handler.
    """
    subscriber_middleware()
    if isinstance(subscriber, ModelProjection):
        return RowProcessor(subscriber, store)
    if isinstance(subscriber, MultiProjection):
        return MultiProcessor(subscriber, store)
    if isinstance(subscriber, Projection):
        return TransactionProcessor(subscriber, store)
    if isinstance(subscriber, SnapshotSubscriber):
        return SnapshotProcessor(subscriber, store, needed_snapshots(store))
    if has_state(subscriber):
        return ProcessProcessor(subscriber, store, send, change_deadlines, conf().SUBSCRIBERS.PROCESS_RETENTION)
    return EffectProcessor(subscriber, store, send, change_deadlines)


def make_subscription(
    subscriber: Subscriber,
    transport: Transport,
    store: EventStore,
    *,
    persist: Persist = until_it_works,
    in_flight: InFlight | None = None,
    hand_over: Callable[[], None] = lambda: None,
) -> SweepingSubscription:
    """Return a subscription of ``subscriber`` to the event topic of the settings."""
    current = conf()
    processor = make_processor(subscriber, store, sending(subscriber, current_bus))
    return SweepingSubscription(
        Runner(processor, persist, in_flight, singles_out=True),
        policy=make_policy(subscriber, current),
        notify=notices_through(transport, persist),
        transport=transport,
        topic=current.SUBSCRIBERS.TOPIC,
        interval=current.SUBSCRIBERS.SWEEP_INTERVAL,
        hand_over=hand_over,
        new_resender=_new_resender(processor, transport, current),
    )


def _new_resender(processor: EventProcessor, transport: Transport, current: Conf) -> Callable[[Shard], Resender] | None:
    """Return a factory of a shard's resender; None for subscribers that are not process managers or do not resend."""
    if not (isinstance(processor, EffectProcessor) and can_resend(processor.subscriber)):
        return None
    return lambda shard: Resender(
        processor,
        shard,
        transport,
        topic=current.COMMANDS.TOPIC,
        group=current.COMMANDS.CONSUMER_GROUP,
        interval=current.SUBSCRIBERS.SWEEP_INTERVAL,
        dead_letters=make_dead_letters(processor.store),
    )


def make_retries(current: Conf, *, waits: bool = True) -> HandlerRetries:
    """Return how commands are retried after an error that passes. Raises `ConfigurationError`."""
    errors = tuple(imported(path, 'WORKERS["RETRY_ON"]') for path in current.WORKERS.RETRY_ON)
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise ConfigurationError(f"ENODE['WORKERS']['RETRY_ON'] names {error!r}, which is not an exception class")
    return HandlerRetries(current.WORKERS.ATTEMPTS, current.WORKERS.RETRY_DELAY, errors, waits)


def make_policy(subscriber: Subscriber, current: Conf) -> RetryPolicy:
    """Return the subscriber's retry policy. Raises `ConfigurationError`."""
    attempts, delay, errors, _ = make_retries(current)
    unknown_delays = current.WORKERS.UNKNOWN_TYPE_DELAYS
    policy = RetryPolicy.of(subscriber.retry, attempts, delay, unknown_delays=unknown_delays, passing=errors)
    is_projection = isinstance(subscriber, BaseProjection)
    return policy._replace(conflict_patience=CONFLICT_PATIENCE) if is_projection else policy


def _is_test() -> bool:
    """Return True while `django.test.utils.setup_test_environment` is in force, as under Django's test runner and
    pytest-django.

    It looks for the documented effects: an outbox, and the host of the test client. The outbox alone may belong to a
    project that keeps its mail in memory.
    """
    mail = sys.modules.get("django.core.mail")
    return hasattr(mail, "outbox") and "testserver" in settings.ALLOWED_HOSTS


@contextmanager
def subscription_of(name: str) -> Iterator[SweepingSubscription]:
    """Open a subscription outside the workers to settle parked aggregates. It makes one attempt. Raises
    `UnknownSubscriber` and `SubscriberUnavailable`."""
    with closing(make_transport_if_any()) as transport:
        yield make_subscription(subscribers.get(name), transport, make_store(), persist=once)


def replay(*names: str) -> dict[str, int]:
    """Replay the stored events to the named subscribers (default: all) from their checkpoints on, in this thread and
    connection. Blocks until all are handled. Return the number of aggregates that each caught up with.

    Process managers and event handlers are left out unless they have ``replays = True``. Raises `UnknownSubscriber`,
    and the errors of handlers.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        assert replay("bank.AccountSummaries") == {"bank.AccountSummaries": 0}  # it is not behind
    """
    store = make_store()
    chosen = [subscribers.get(name) for name in names] if names else subscribers.all()

    return replay_stored(chosen, store, lambda one: make_processor(one, store, sending(one, current_bus)))


class _Current:
    """The bus of this process. It is made at first use, and again in a forked child and after a change of settings."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bus: CommandBus | None = None
        self.made: CommandBus | None = None
        """The bus that was made from the settings; `use_bus` may replace it."""
        self.pid = 0


_current = _Current()


def _make_bus() -> CommandBus:
    backend = import_queue_backend()
    if not _is_transport(backend):
        bus: CommandBus = backend.make_bus()
        return bus
    transport = make_transport()
    return QueueCommandBus(transport, make_producer(transport), conf().COMMANDS.TOPIC)


def current_bus() -> CommandBus:
    bus = _current.bus  # read once: another thread may close it meanwhile
    if bus is not None and _current.pid == os.getpid():
        return bus
    with _current.lock:
        if _current.bus is None or _current.pid != os.getpid():
            _current.bus = _current.made = _make_bus()
            _current.pid = os.getpid()
        return _current.bus


def current_store() -> EventStore:
    """Return the store of this process's commands: that of the bus in use, or else that of the settings."""
    bus = _current.bus
    store = bus.store if bus is not None and _current.pid == os.getpid() else None
    return make_store() if store is None else store


def close_bus() -> None:
    """Close the bus of this process and its connections. The next use makes another bus.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        close_bus()
    """
    with _current.lock:
        bus, pid, _current.bus = _current.bus, _current.pid, None
    if bus is not None and pid == os.getpid():
        bus.close()


@contextmanager
def use_bus(bus: CommandBus) -> Iterator[None]:
    """Make every sender of this process use ``bus`` inside the block.

    For example::

        with use_bus(InlineCommandBus(MemoryEventStore())):
            execute_command(OpenAccount("ada", owner="Ada"))
            assert BankAccount.load("ada").owner == "Ada"
    """
    with _current.lock:
        before = (_current.bus, _current.pid)
        _current.bus, _current.pid = bus, os.getpid()
    try:
        yield
    finally:
        with _current.lock:
            _current.bus, _current.pid = before


def _settings_changed(*, setting: str, **_: object) -> None:
    if setting == "ENODE" and _current.bus is _current.made:
        close_bus()


def _forked() -> None:
    _current.lock = threading.RLock()


setting_changed.connect(_settings_changed)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


def chosen_allocation(current: Conf) -> Allocate:
    """Return the function that divides the queues among the members of a group. Raises `ConfigurationError`."""
    path = current.QUEUE.ALLOCATION
    return divide if path is None else cast(Allocate, imported(path, 'QUEUE["ALLOCATION"]'))
