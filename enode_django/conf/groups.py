"""The groups of the settings, and their defaults.

Each key is a field, which alone defines its type, default, rule and meaning. The fields of `Conf` that are classes are
the groups. Sizes are in bytes. Times are in seconds; a `timedelta` is read as seconds. Counts are for one worker
process unless they say otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field
from typing import Any, NoReturn

from enode_django.conf.rules import BY_SIZE, Count, CountOrZero, Delays, Engine, Seconds, Switch, Text, Texts

BROKER = "enode_django.equeue.transports.broker.BrokerTransport"
REDIS_STREAMS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
LOCATIONS = {BROKER: "tcp://127.0.0.1:7625", REDIS_STREAMS: "redis://127.0.0.1:6379/0"}
IMMEDIATE = "enode_django.immediate.Immediate"
POSTGRES = "enode_django.eventstore.postgres.PostgresEventStore"

PASSING_ERRORS = (
    "django.db.OperationalError",
    "psycopg.OperationalError",
    "builtins.ConnectionError",
    "builtins.TimeoutError",
)

DISCOVERED_MODULES = (
    "domain",
    "commands",
    "events",
    "aggregates",
    "command_handlers",
    "projections",
    "process_managers",
    "event_handlers",
)

MIB, DAY = 1024 * 1024, 86_400.0


class Group:
    """Settings that do not change. Its fields are those of a dataclass. It has no generated methods: to generate them
    for each group would take half of the import time."""

    def __init__(self, **values: Any) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # all subclasses are dataclasses
            make: Any = each.default_factory
            object.__setattr__(self, each.name, values.pop(each.name, each.default if make is MISSING else make()))
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
        self._settle()

    def _settle(self) -> None:
        """Replace values that depend on others or have another form."""

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __repr__(self) -> str:
        shown = (each.name for each in dataclasses.fields(self) if each.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@dataclass(init=False, repr=False, eq=False)
class Queue(Group):
    """The server that keeps messages, and the division of topics into queues."""

    BACKEND: str = BROKER
    """Dotted path of a transport."""
    LOCATION: str = ""
    """URL of the server that the transport connects to. Empty: replaced by the default one of ``BACKEND``."""
    OPTIONS: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the transport."""
    QUEUES_PER_TOPIC: Count = 8
    """The number of queues of a topic that is created; an upper bound on how many workers can share them."""
    ALLOCATION: str | None = None
    """Dotted path of a function that divides queues among the members of a group (None: evenly, with few moves)."""

    def _settle(self) -> None:
        object.__setattr__(self, "BACKEND", str(self.BACKEND))
        object.__setattr__(self, "LOCATION", str(self.LOCATION) or LOCATIONS.get(self.BACKEND, ""))


@dataclass(init=False, repr=False, eq=False)
class EventStore(Group):
    """The databases of the event store."""

    DATABASES: Sequence[str] = field(default_factory=lambda: ["default"])
    """Aliases of the shards' databases."""
    BACKEND: str = POSTGRES
    """Dotted path of an event store."""

    def _settle(self) -> None:
        object.__setattr__(self, "BACKEND", str(self.BACKEND))

    @property
    def tables_in(self) -> Sequence[str]:
        """The aliases of the databases that have the tables of the event store: none with another ``BACKEND``."""
        return self.DATABASES if self.BACKEND == POSTGRES else ()


@dataclass(init=False, repr=False, eq=False)
class Commands(Group):
    """Settings of sending and handling commands."""

    TOPIC: Text = "commands"
    CONSUMER_GROUP: Text = "processors"
    MAILBOXES: Count = 1
    """Threads that handle commands, for each shard. More threads help handlers that wait. Python runs one thread at a
    time, so only more processes use more cores."""
    EVENT_MAILBOXES: Count = 1
    """Threads that write to the store, for each shard."""
    PULL_MAX_BATCH: Count = 1000
    """The most messages of one pull from one queue."""
    COPY_MAX_BATCH: Count = 2500
    """The number of entries at which an event mailbox stops collecting and writes."""
    COPY_MAX_BYTES: Count = 16 * MIB
    """The most bytes of events and metadata in one batch."""
    MAX_UNFINISHED: Count = 20_000
    """The most commands pulled and not yet published. Above a shard's equal share, its queues pause."""
    MAX_UNFINISHED_BYTES: Count = 256 * MIB
    """The most bytes of unfinished commands, and of their events that are not yet published."""
    RECENT_COMMANDS: Count = 50_000
    """Commands remembered to catch repeats, by all mailboxes together; each has at least 2 * ``MAX_UNFINISHED``."""
    REMEMBERED_ANSWERS: CountOrZero = 10_000
    """The number of answers without a row in the event store that each queue keeps (0: none)."""
    EVENTS_MAX_BYTES: Count = 4 * MIB
    """The most bytes of one command's events with its metadata."""
    TIME_LIMIT: Seconds = 60.0
    """The time limit for each attempt to handle a command."""
    EXECUTE_TIMEOUT: Seconds = 10.0
    """The timeout of `execute_command` if a call gives none."""
    CLAIM_DEADLINE: Seconds = 60.0
    """The time after which another aggregate may take a unique value that was claimed by a command without an
    outcome."""
    REFUSAL_RETENTION: Seconds | None = 90 * DAY
    """Stored refusals older than this are deleted (None: never)."""
    DEAD_LETTER_RETENTION: Seconds | None = 90 * DAY
    """Dead letters of commands whose last failure is older than this are deleted (None: never)."""


@dataclass(init=False, repr=False, eq=False)
class Outbox(Group):
    """Settings of the commands that are written in their senders' transactions."""

    ON_COMMIT: Switch = False
    """`send_command_on_commit` writes to the outbox."""
    DATABASES: Texts | None = None
    """Aliases of the databases whose outbox ``runprocessors`` relays (None: all of ``DATABASES`` that have one)."""
    INTERVAL: Seconds = 0.2
    """The longest time between two checks of an outbox by its relay, if senders cannot wake it. Five times that if they
    can."""


@dataclass(init=False, repr=False, eq=False)
class Subscribers(Group):
    """Settings of following the events."""

    TOPIC: Text = "events"
    PULL_MAX_BATCH: Count = 2500
    """The most messages of one pull from one queue, for one subscriber."""
    TIME_LIMIT: Seconds = 300.0
    """The time limit for the events of one command, for subscribers without a ``time_limit``."""
    SWEEP_INTERVAL: Seconds = 30.0
    """The time between two comparisons of the event store with a subscriber's checkpoints."""
    PROCESS_RETENTION: Seconds | None = 30 * DAY
    """The time for which the state of a process is kept after its end, and for which an event waits for its process to
    begin (None: forever)."""


@dataclass(init=False, repr=False, eq=False)
class Workers(Group):
    """Settings of both command workers and event workers."""

    PROCESSES: Count | None = None
    """Worker processes of each role in one runprocessors (None: one per core it may use)."""
    PRELOAD: Switch = True
    """Workers are forked from a process that has the project loaded, where that is safe (False: each loads it)."""
    LEASE: Seconds = 10.0
    """The time after which a silent worker loses its queues."""
    GRACE: Seconds = 30.0
    """The time limit for workers to drain on shutdown."""
    COMMIT_INTERVAL: Seconds = 1.0
    LONG_POLL: Seconds = 15.0
    """The longest time that a pull waits for messages."""
    ATTEMPTS: Count = 5
    """The number of failures at one event after which a subscriber without ``retry`` parks the aggregate, and of errors
    that pass after which a command fails."""
    RETRY_DELAY: Seconds = 0.1
    """The pause before the second attempt. It doubles before each further one, up to 5 seconds."""
    RETRY_ON: Sequence[str] = PASSING_ERRORS
    """Dotted paths of the exceptions after which a command is handled again (unless its handler names others), and
    after which a subscriber retries an event without end."""
    MAX_ABNORMAL_ENDS: Count = 3
    """A command whose worker died this many times while handling it is not handled again. A subscriber parks the
    aggregate instead."""
    UNKNOWN_TYPE_DELAYS: Delays = (1.0, 2.0, 5.0, 10.0, 30.0)
    """The pauses between tries of a command or an event of an unknown type."""


@dataclass(init=False, repr=False, eq=False)
class AggregateCache(Group):
    """Settings of the aggregates that command workers keep."""

    MAX_AGGREGATES: Count = 100_000
    MAX_BYTES: Count = 512 * MIB
    LOCATION: str | None = None
    """A Redis server for shared states (None: nothing is shared)."""
    PREFIX: str = "enode"
    TTL: Count = 86_400
    """The lifetime of a shared state after its last write, in whole seconds."""
    WRITE_INTERVAL: Seconds = 5.0
    """The least time between two writes of one aggregate's shared state."""


@dataclass(init=False, repr=False, eq=False)
class Snapshots(Group):
    """Settings of snapshots."""

    ENABLED: Switch = True


@dataclass(init=False, repr=False, eq=False)
class Jobs(Group):
    """Settings of jobs: snapshots, rebuilds, exports."""

    LEASE: Seconds = 60.0
    """The time after which another job may take over the work of a silent one."""
    TIME_LIMIT: Seconds = 21_600.0
    ATTEMPTS: Count = 5
    """The most runs of a Celery task that fails by a transient error."""
    EXPORT_DIRECTORIES: Texts = field(default_factory=list)
    """The directories and URIs that the admin offers for an export of events."""


@dataclass(init=False, repr=False, eq=False)
class Spark(Group):
    """Settings of the Spark session."""

    MASTER: Text = "local[*]"
    CONFIG: Mapping[str, Any] = field(default_factory=dict)
    """Properties of Spark."""
    PY_FILES: Texts = field(default_factory=list)
    """Files that executors need besides the project's own packages."""
    REPLICAS: Mapping[str, str] = field(default_factory=dict)
    """The aliases of replicas to read shards from, by the aliases of the shards."""
    DATABASE_TASKS: Count | None = None
    """The most tasks of a job that use the database at once (None: as many as there are cores)."""


@dataclass(init=False, repr=False, eq=False)
class Rebuilds(Group):
    """Settings of rebuilds of projections."""

    ENGINE: Engine = BY_SIZE
    PROCESSES: Count | None = None
    """Processes of one rebuild (None: one for each core that may be used)."""
    SPARK_FROM: Count | None = None
    """The number of streams in the store from which on a rebuild on one machine uses Spark (None: never)."""


@dataclass(init=False, repr=False, eq=False)
class Reports(Group):
    """Settings of the figures that processors report."""

    INTERVAL: Seconds | None = 5.0
    """The time between two rows of figures (None: none are written)."""
    RETENTION: Seconds = DAY


@dataclass(init=False, repr=False, eq=False)
class Api(Group):
    """The settings of `enode_django.api`."""

    COMMANDS: Mapping[str, Any] = field(default_factory=dict)
    """Permissions by type names."""
    MAX_BODY: Count = MIB
    MAX_TIMEOUT: Seconds = 60.0
    STREAM_SECONDS: Seconds = 300.0
    STREAM_INTERVAL: Seconds = 1.0
    STREAM_HEARTBEAT: Seconds = 15.0
    KEY_RETENTION: Seconds = 7 * DAY
    """The time for which an ``Idempotency-Key`` is remembered."""


@dataclass(init=False, repr=False, eq=False)
class Broker(Group):
    """The settings of the broker that ``runbroker`` runs; `BrokerOptions` says what they may be."""

    LISTEN: str = LOCATIONS[BROKER]
    DIRECTORY: str = "broker"
    FLUSH: str = "interval"
    FLUSH_INTERVAL: float = 0.1
    CHUNK_SIZE: int = 256 * MIB
    RETENTION_AGE: float | None = 3 * DAY
    RETENTION_BYTES: int | None = None
    RETENTION_MESSAGES: int | None = None
    RETENTION_ALL: bool = False
    DELETE_UNCONSUMED: bool = False
    LOW_WATERMARK: int | None = None
    HIGH_WATERMARK: int | None = None
    RING_BATCHES: int = 100_000
    RING_BYTES: int = 64 * MIB
    MAX_UNFLUSHED: int = 128 * MIB
    RESERVE: int | None = None
    LOW_SPACE: int | None = None
    SECRET: str | None = None
    SECRETS: Mapping[str, Any] = field(default_factory=dict)
    MAX_CONNECTIONS: int = 10_000
    TLS_CERTIFICATE: str | None = None
    TLS_KEY: str | None = None
    TLS_CLIENT_CA: str | None = None


@dataclass(init=False, repr=False, eq=False)
class Conf(Group):
    """The settings in force. Its ``repr`` shows no secrets."""

    QUEUE: Queue = field(default_factory=Queue, repr=False)
    EVENT_STORE: EventStore = field(default_factory=EventStore)
    COMMANDS: Commands = field(default_factory=Commands)
    OUTBOX: Outbox = field(default_factory=Outbox)
    SUBSCRIBERS: Subscribers = field(default_factory=Subscribers)
    WORKERS: Workers = field(default_factory=Workers)
    AGGREGATE_CACHE: AggregateCache = field(default_factory=AggregateCache)
    SNAPSHOTS: Snapshots = field(default_factory=Snapshots)
    JOBS: Jobs = field(default_factory=Jobs)
    SPARK: Spark = field(default_factory=Spark)
    REBUILDS: Rebuilds = field(default_factory=Rebuilds)
    REPORTS: Reports = field(default_factory=Reports)
    API: Api = field(default_factory=Api)
    BROKER: Broker = field(default_factory=Broker, repr=False)
    COMMAND_MIDDLEWARE: Texts = ()
    """Dotted paths of the middleware of command handlers, the outermost first."""
    SUBSCRIBER_MIDDLEWARE: Texts = ()
    """Dotted paths of the middleware of subscribers' handlers, the outermost first."""
    SEND_IN_TESTS: Switch = False
    """Tests may send to the queue, outside of ``inline()``."""
    AUTODISCOVER_MODULES: Texts = DISCOVERED_MODULES
    """Modules of every installed app that are imported at the start."""

    @property
    def command_mailboxes(self) -> int:
        """The number of command mailboxes of all shards."""
        return len(self.EVENT_STORE.DATABASES) * self.COMMANDS.MAILBOXES


GROUPS: Mapping[str, type[Any]] = {
    each.name: each.default_factory  # type: ignore[misc]
    for each in dataclasses.fields(Conf)
    if isinstance(each.default_factory, type) and dataclasses.is_dataclass(each.default_factory)
}
"""The classes of the groups by their keys."""
