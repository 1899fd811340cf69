"""The dictionary ``ENODE`` of the settings, read when it is used, so that ``override_settings`` works.

Each key is a field, which alone defines its type, default, rule and meaning. The fields of `Conf` that are classes are
the groups. Sizes are in bytes. Times are in seconds; a `timedelta` is read as seconds. Counts are for one worker
process unless they say otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import django
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from enode_django.exceptions import ConfigurationError

__all__ = ["conf"]

BROKER = "enode_django.equeue.transports.broker.BrokerTransport"
REDIS_STREAMS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
LOCATIONS = {BROKER: "tcp://127.0.0.1:7625", REDIS_STREAMS: "redis://127.0.0.1:6379/0"}
IMMEDIATE = "enode_django.immediate.Immediate"
POSTGRES = "enode_django.eventstore.postgres.PostgresEventStore"

BY_SIZE, IN_PROCESSES, ON_SPARK = "auto", "processes", "spark"
ENGINES = (BY_SIZE, IN_PROCESSES, ON_SPARK)
"""The engines of a rebuild that ``REBUILDS`` may name."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint on a value. ``accepts`` decides; ``wanted`` is its text in messages; the check ``id`` reports it."""

    wanted: str
    accepts: Callable[[Any], bool]
    id: str


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _are_delays(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_number(each) and each >= 0 for each in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


Count = Annotated[
    int, Rule("a whole number above 0", lambda value: type(value) is int and value >= 1, id="enode_django.E003")
]
CountOrZero = Annotated[
    int,
    Rule("a whole number that is not below 0", lambda value: type(value) is int and value >= 0, id="enode_django.E009"),
]
Seconds = Annotated[
    float,
    Rule("a number above 0, or a timedelta", lambda value: _is_number(value) and value > 0, id="enode_django.E007"),
]
Delays = Annotated[
    Sequence[float],
    Rule("a list of numbers that are not below 0, or of timedeltas", _are_delays, id="enode_django.E008"),
]
Text = Annotated[str, Rule("a text that is not empty", _is_text, id="enode_django.E083")]
Texts = Annotated[Sequence[str], Rule("a list of texts that are not empty", _are_texts, id="enode_django.E085")]
Switch = Annotated[bool, Rule("True or False", lambda value: isinstance(value, bool), id="enode_django.E084")]
Engine = Annotated[
    str, Rule(f"one of {', '.join(map(repr, ENGINES))}", lambda value: value in ENGINES, id="enode_django.E067")
]


# No slots and no equality: nothing needs them, and generating them takes half of the import time.
@dataclass(frozen=True, kw_only=True, eq=False)
class Queue:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "BACKEND", str(self.BACKEND))
        object.__setattr__(self, "LOCATION", str(self.LOCATION) or LOCATIONS.get(self.BACKEND, ""))


@dataclass(frozen=True, kw_only=True, eq=False)
class EventStore:
    DATABASES: Sequence[str] = field(default_factory=lambda: ["default"])
    """Aliases of the shards' databases."""
    BACKEND: str = POSTGRES
    """Dotted path of an event store."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "BACKEND", str(self.BACKEND))


@dataclass(frozen=True, kw_only=True, eq=False)
class Commands:
    """Settings of sending and handling commands."""

    TOPIC: Text = "commands"
    CONSUMER_GROUP: Text = "processors"
    MAILBOXES: Count = 1
    """Threads that handle commands, for each shard. More threads help handlers that wait; Python runs one thread at a
    time, so it takes processes to use the cores."""
    EVENT_MAILBOXES: Count = 1
    """Threads that write to the store, for each shard."""
    PULL_MAX_BATCH: Count = 500
    """The most messages of one pull from one queue."""
    COPY_MAX_BATCH: Count = 1000
    COPY_MAX_BYTES: Count = 16 * MIB
    """The most bytes of events and metadata in one batch."""
    MAX_UNFINISHED: Count = 20_000
    """The most commands pulled and not yet published. The queues of a shard pause above the shard's share."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Subscribers:
    """Settings of following the events."""

    TOPIC: Text = "events"
    PULL_MAX_BATCH: Count = 1000
    """The most messages of one pull from one queue, for one subscriber."""
    TIME_LIMIT: Seconds = 300.0
    """The time limit for the events of one command, for subscribers without a ``time_limit``."""
    SWEEP_INTERVAL: Seconds = 30.0
    """The time between two comparisons of the event store with a subscriber's checkpoints."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers:
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
    """The most failures. After this many at one event a subscriber without ``retry`` parks its aggregate; after this
    many errors that pass a command fails."""
    RETRY_DELAY: Seconds = 0.1
    """The pause before the second attempt. It doubles before each further one."""
    RETRY_ON: Sequence[str] = PASSING_ERRORS
    """Dotted paths of the exceptions after which a command is handled again (unless its handler names others), and
    after which a subscriber retries an event without end."""
    MAX_ABNORMAL_ENDS: Count = 3
    """A command whose worker died this many times while handling it is not handled again. A subscriber parks the
    aggregate instead."""
    UNKNOWN_TYPE_DELAYS: Delays = (1.0, 2.0, 5.0, 10.0, 30.0)
    """The pauses between tries of a command or an event of an unknown type."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateCache:
    MAX_AGGREGATES: Count = 100_000
    MAX_BYTES: Count = 512 * MIB
    LOCATION: str | None = None
    """A Redis server for shared states (None: nothing is shared)."""
    PREFIX: str = "enode"
    TTL: Count = 86_400
    """The lifetime of a shared state after its last write, in whole seconds."""
    WRITE_INTERVAL: Seconds = 5.0
    """The least time between two writes of one aggregate's shared state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshots:
    ENABLED: Switch = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Jobs:
    LEASE: Seconds = 60.0
    """The time after which another job may take over the work of a silent one."""
    TIME_LIMIT: Seconds = 21_600.0
    ATTEMPTS: Count = 5
    """The most runs of a Celery task that fails by a transient error."""
    EXPORT_DIRECTORIES: Texts = field(default_factory=list)
    """The directories and URIs that the admin offers for an export of events."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spark:
    MASTER: Text = "local[*]"
    CONFIG: Mapping[str, Any] = field(default_factory=dict)
    """Properties of Spark."""
    PY_FILES: Texts = field(default_factory=list)
    """Files that executors need besides the project's own packages."""
    REPLICAS: Mapping[str, str] = field(default_factory=dict)
    """The aliases to read shards from, by the aliases of the shards."""
    DATABASE_TASKS: Count | None = None
    """The most tasks of a job that use the database at once (None: as many as there are cores)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rebuilds:
    ENGINE: Engine = BY_SIZE
    PROCESSES: Count | None = None
    """Processes of one rebuild (None: one for each core that may be used)."""
    SPARK_FROM: Count | None = None
    """The streams of a store from which on a rebuild on one machine uses Spark (None: never)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reports:
    INTERVAL: Seconds | None = 5.0
    """The time between two rows of figures (None: none are written)."""
    RETENTION: Seconds = DAY


@dataclass(frozen=True, kw_only=True, eq=False)
class Api:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Broker:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Conf:
    """The settings in force. Its ``repr`` shows no secrets."""

    QUEUE: Queue = field(default_factory=Queue, repr=False)
    EVENT_STORE: EventStore = field(default_factory=EventStore)
    COMMANDS: Commands = field(default_factory=Commands)
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

MOVED: Mapping[str, tuple[str, str]] = {
    "ALLOCATION": ("QUEUE", "ALLOCATION"),
    "COMMAND_MAILBOXES": ("COMMANDS", "MAILBOXES"),
    "COMMAND_TOPIC": ("COMMANDS", "TOPIC"),
    "COMMIT_INTERVAL": ("WORKERS", "COMMIT_INTERVAL"),
    "CONSUMER_GROUP": ("COMMANDS", "CONSUMER_GROUP"),
    "COPY_MAX_BATCH": ("COMMANDS", "COPY_MAX_BATCH"),
    "COPY_MAX_BYTES": ("COMMANDS", "COPY_MAX_BYTES"),
    "DEAD_LETTER_RETENTION_DAYS": ("COMMANDS", "DEAD_LETTER_RETENTION"),
    "EVENTS_MAX_BYTES": ("COMMANDS", "EVENTS_MAX_BYTES"),
    "EVENT_MAILBOXES": ("COMMANDS", "EVENT_MAILBOXES"),
    "EVENT_PULL_MAX_BATCH": ("SUBSCRIBERS", "PULL_MAX_BATCH"),
    "EVENT_TOPIC": ("SUBSCRIBERS", "TOPIC"),
    "EXECUTE_TIMEOUT": ("COMMANDS", "EXECUTE_TIMEOUT"),
    "GRACE": ("WORKERS", "GRACE"),
    "HANDLER_ATTEMPTS": ("WORKERS", "ATTEMPTS"),
    "HANDLER_RETRY_DELAY": ("WORKERS", "RETRY_DELAY"),
    "HANDLER_RETRY_ON": ("WORKERS", "RETRY_ON"),
    "HANDLER_TIME_LIMIT": ("COMMANDS", "TIME_LIMIT"),
    "LEASE": ("WORKERS", "LEASE"),
    "LONG_POLL": ("WORKERS", "LONG_POLL"),
    "MAX_ABNORMAL_ENDS": ("WORKERS", "MAX_ABNORMAL_ENDS"),
    "MAX_UNFINISHED": ("COMMANDS", "MAX_UNFINISHED"),
    "MAX_UNFINISHED_BYTES": ("COMMANDS", "MAX_UNFINISHED_BYTES"),
    "PRELOAD": ("WORKERS", "PRELOAD"),
    "PROCESSES": ("WORKERS", "PROCESSES"),
    "PULL_MAX_BATCH": ("COMMANDS", "PULL_MAX_BATCH"),
    "QUEUES_PER_TOPIC": ("QUEUE", "QUEUES_PER_TOPIC"),
    "RECENT_COMMANDS": ("COMMANDS", "RECENT_COMMANDS"),
    "REFUSAL_RETENTION_DAYS": ("COMMANDS", "REFUSAL_RETENTION"),
    "REMEMBERED_ANSWERS": ("COMMANDS", "REMEMBERED_ANSWERS"),
    "SUBSCRIBER_TIME_LIMIT": ("SUBSCRIBERS", "TIME_LIMIT"),
    "SWEEP_INTERVAL": ("SUBSCRIBERS", "SWEEP_INTERVAL"),
    "UNKNOWN_TYPE_DELAYS": ("WORKERS", "UNKNOWN_TYPE_DELAYS"),
}
"""The keys that were at the top, with their groups and their names there."""
MOVED_OF_API: Mapping[str, tuple[str, str]] = {"KEY_RETENTION_DAYS": ("API", "KEY_RETENTION")}


def given() -> Mapping[str, Any]:
    """Return ``settings.ENODE`` as it stands. Raises `ConfigurationError` if it, or a group of it, is not a mapping."""
    if not settings.configured and ENVIRONMENT_VARIABLE not in os.environ:
        _configure()
    value = getattr(settings, "ENODE", {})
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"ENODE must be a dictionary, got {value!r}")
    for key in GROUPS:
        if not isinstance(value.get(key, {}), Mapping):
            raise ConfigurationError(f"ENODE[{key!r}] must be a dictionary, got {value[key]!r}")
    options = value.get("QUEUE", {}).get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"ENODE['QUEUE']['OPTIONS'] must be a dictionary, got {options!r}")
    return value


def _configure() -> None:
    """Configure Django for a script without settings: this package alone, without a queue or a database."""
    settings.configure(INSTALLED_APPS=["enode_django"], ENODE={"QUEUE": {"BACKEND": IMMEDIATE}})
    django.setup()


@lru_cache(maxsize=1)
def conf() -> Conf:
    """Return the settings in force.
    Unknown keys are left to the system check that refuses them::

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


def broken_rules(current: Conf) -> Iterator[tuple[str, Any, Rule]]:
    """Yield, for each value that breaks a rule of its key, the place of the key, the value and the rule."""
    yield from _broken_rules("ENODE", current)
    for key in GROUPS:
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
    except (ImportError, TypeError, ValueError) as error:
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
