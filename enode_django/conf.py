"""The one dictionary ``ENODE`` of the settings, read when it is used, so that ``override_settings`` works."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from enode_django.exceptions import ConfigurationError

BROKER = "enode_django.equeue.transports.broker.BrokerTransport"
REDIS_STREAMS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
LOCATIONS = {BROKER: "tcp://127.0.0.1:7625", REDIS_STREAMS: "redis://127.0.0.1:6379/0"}
POSTGRES = "enode_django.eventstore.postgres.PostgresEventStore"

BROKER_DEFAULTS: Mapping[str, Any] = {
    "LISTEN": "tcp://127.0.0.1:7625",
    "DIRECTORY": "broker",
    "FLUSH": "interval",
    "FLUSH_INTERVAL": 0.1,
    "CHUNK_SIZE": 256 * 1024 * 1024,
    "RETENTION_AGE": 3 * 86_400.0,
    "RETENTION_BYTES": None,
    "RETENTION_MESSAGES": None,
    "RETENTION_ALL": False,
    "DELETE_UNCONSUMED": False,
    "LOW_WATERMARK": None,
    "HIGH_WATERMARK": None,
    "RING_BATCHES": 100_000,
    "RING_BYTES": 64 * 1024 * 1024,
    "MAX_UNFLUSHED": 128 * 1024 * 1024,
    "RESERVE": None,
    "LOW_SPACE": None,
    "SECRET": None,
    "SECRETS": {},
    "MAX_CONNECTIONS": 10_000,
    "TLS_CERTIFICATE": None,
    "TLS_KEY": None,
    "TLS_CLIENT_CA": None,
}

BY_SIZE, IN_PROCESSES, ON_SPARK = "auto", "processes", "spark"
ENGINES = (BY_SIZE, IN_PROCESSES, ON_SPARK)
"""The engines of a rebuild that ``REBUILDS`` may name."""
API_DEFAULTS: Mapping[str, Any] = {
    "COMMANDS": {},
    "MAX_BODY": 1024 * 1024,
    "MAX_TIMEOUT": 60.0,
    "STREAM_SECONDS": 300.0,
    "STREAM_INTERVAL": 1.0,
    "STREAM_HEARTBEAT": 15.0,
    "KEY_RETENTION_DAYS": 7.0,
}

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """Sizes in bytes, times in seconds. Counts are for one worker process unless they say otherwise."""

    QUEUE: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """``BACKEND`` (dotted path of a transport), ``LOCATION`` (URL), ``OPTIONS`` (keyword arguments)."""
    COMMAND_TOPIC: str = "commands"
    EVENT_TOPIC: str = "events"
    QUEUES_PER_TOPIC: int = 8
    """The number of queues of a topic that is created; an upper bound on how many workers can share them."""
    CONSUMER_GROUP: str = "processors"
    ALLOCATION: str | None = None
    """Dotted path of what divides queues among the members of a group (None: evenly, and as few as possible move)."""
    COMMAND_MAILBOXES: int = 1
    """Threads that handle commands, for each shard. More threads help handlers that wait; Python runs one thread at a
    time, so it takes processes to use the cores."""
    EVENT_MAILBOXES: int = 1
    """Threads that write to the store, for each shard."""
    COPY_MAX_BATCH: int = 1000
    COPY_MAX_BYTES: int = 16 * 1024 * 1024
    """The most bytes of events and metadata in one batch."""
    PULL_MAX_BATCH: int = 500
    """The most messages of one pull from one queue."""
    EVENT_PULL_MAX_BATCH: int = 1000
    """The most messages of one pull from one queue, for one subscriber."""
    MAX_UNFINISHED: int = 20_000
    """Commands pulled and not published yet; above its share of it a shard's queues pause."""
    MAX_UNFINISHED_BYTES: int = 256 * 1024 * 1024
    """The most bytes of unfinished commands; and of the events that they came to, as long as they are not published."""
    RECENT_COMMANDS: int = 50_000
    REMEMBERED_ANSWERS: int = 10_000
    """The number of answers without a row in the event store that each queue keeps (0: none)."""
    EVENTS_MAX_BYTES: int = 4 * 1024 * 1024
    AGGREGATE_CACHE: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``MAX_AGGREGATES`` (100,000), ``MAX_BYTES`` (512 MiB), and for the states shared in Redis ``LOCATION`` (None:
    nothing is shared), ``PREFIX``, ``TTL``, ``WRITE_INTERVAL``."""
    EVENT_STORE: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``DATABASES`` (``["default"]``), ``BACKEND`` (dotted path of an event store)."""
    SNAPSHOTS: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``ENABLED`` (True)."""
    JOBS: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``LEASE`` (60), ``TIME_LIMIT`` (21,600), ``ATTEMPTS`` (5), ``EXPORT_DIRECTORIES`` (none)."""
    SPARK: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``MASTER`` (``"local[*]"``), ``CONFIG`` (properties of Spark), ``PY_FILES`` (what else executors need),
    ``REPLICAS`` (alias of a shard: alias to read it from), ``DATABASE_TASKS`` (tasks of a job that use the database at
    once)."""
    REBUILDS: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``ENGINE`` (``"auto"``, ``"processes"`` or ``"spark"``), ``PROCESSES`` (None: one per core that may be used),
    ``SPARK_FROM`` (streams; None: never by size)."""
    REPORTS: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """``INTERVAL`` (5; None: none are written), ``RETENTION`` (3,600)."""
    BROKER: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """The settings of the broker that ``runbroker`` runs: see `BROKER_DEFAULTS`."""
    API: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of `enode_django.api`: see `API_DEFAULTS`."""
    PROCESSES: int | None = None
    """Worker processes of each role in one runprocessors (None: one per core it may use)."""
    PRELOAD: bool = True
    """Workers are forked from a process that has the project loaded, where that is safe (False: each loads it)."""
    COMMIT_INTERVAL: float = 1.0
    LONG_POLL: float = 15.0
    """Seconds that a pull waits for messages if there are none."""
    LEASE: float = 10.0
    """Seconds until a silent worker loses its queues."""
    GRACE: float = 30.0
    """Seconds that workers may drain on shutdown."""
    HANDLER_TIME_LIMIT: float = 60.0
    SUBSCRIBER_TIME_LIMIT: float = 300.0
    """Seconds that a subscriber without a ``time_limit`` of its own may take for the events of one command."""
    HANDLER_ATTEMPTS: int = 5
    """The most failures: after so many at the same event a subscriber without ``retry`` parks its aggregate; after so
    many errors that pass a command fails."""
    HANDLER_RETRY_DELAY: float = 0.1
    """Before the second attempt; twice as much before each next."""
    HANDLER_RETRY_ON: tuple[str, ...] = PASSING_ERRORS
    """Dotted paths of the exceptions after which a command is handled again, if its handler does not say which, and
    after which a subscriber tries an event without end."""
    SWEEP_INTERVAL: float = 30.0
    """Between comparisons of the event store with a subscriber's checkpoints."""
    MAX_ABNORMAL_ENDS: int = 3
    """A command found in the hands of a worker that died so many times is not handled again; of a subscriber, the
    aggregate is parked."""
    UNKNOWN_TYPE_DELAYS: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0)
    REFUSAL_RETENTION_DAYS: float | None = 90
    """Stored refusals older than this are deleted (None: never)."""
    DEAD_LETTER_RETENTION_DAYS: float | None = 90
    """Dead letters of commands that failed last before this are deleted (None: never)."""
    EXECUTE_TIMEOUT: float = 10.0
    COMMAND_MIDDLEWARE: tuple[str, ...] = ()
    """Dotted paths of what goes around each call of a command handler, the outermost first."""
    SUBSCRIBER_MIDDLEWARE: tuple[str, ...] = ()
    """Dotted paths of what goes around each call of a subscriber's handler, the outermost first."""
    SEND_IN_TESTS: bool = False
    """Tests may send to the queue, outside of ``inline()``."""
    AUTODISCOVER_MODULES: tuple[str, ...] = DISCOVERED_MODULES

    @property
    def queue_backend(self) -> str:
        return str(self.QUEUE.get("BACKEND", BROKER))

    @property
    def queue_location(self) -> str:
        return str(self.QUEUE.get("LOCATION", LOCATIONS.get(self.queue_backend, "")))

    @property
    def queue_options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self.QUEUE.get("OPTIONS", {})
        return options

    @property
    def max_aggregates(self) -> int:
        return int(self.AGGREGATE_CACHE.get("MAX_AGGREGATES", 100_000))

    @property
    def max_aggregates_bytes(self) -> int:
        return int(self.AGGREGATE_CACHE.get("MAX_BYTES", 512 * 1024 * 1024))

    @property
    def states_location(self) -> str | None:
        location: str | None = self.AGGREGATE_CACHE.get("LOCATION")
        return location

    @property
    def states_prefix(self) -> str:
        prefix: str = self.AGGREGATE_CACHE.get("PREFIX", "enode")
        return prefix

    @property
    def states_ttl(self) -> int:
        seconds: int = self.AGGREGATE_CACHE.get("TTL", 86_400)
        return seconds

    @property
    def states_write_interval(self) -> float:
        seconds: float = self.AGGREGATE_CACHE.get("WRITE_INTERVAL", 5.0)
        return seconds

    @property
    def event_databases(self) -> list[str]:
        return list(self.EVENT_STORE.get("DATABASES", ["default"]))

    @property
    def command_mailboxes(self) -> int:
        """Return the number of command mailboxes of all shards."""
        return len(self.event_databases) * self.COMMAND_MAILBOXES

    @property
    def snapshots_enabled(self) -> bool:
        return bool(self.SNAPSHOTS.get("ENABLED", True))

    @property
    def spark_master(self) -> str:
        master: str = self.SPARK.get("MASTER", "local[*]")
        return master

    @property
    def spark_config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.SPARK.get("CONFIG", {})
        return config

    @property
    def spark_py_files(self) -> list[str]:
        return list(self.SPARK.get("PY_FILES", []))

    @property
    def spark_replicas(self) -> Mapping[str, str]:
        replicas: Mapping[str, str] = self.SPARK.get("REPLICAS", {})
        return replicas

    @property
    def spark_database_tasks(self) -> int | None:
        """The most tasks of a job that use the database at once; None: as many as there are cores."""
        most: int | None = self.SPARK.get("DATABASE_TASKS")
        return most

    @property
    def rebuild_engine(self) -> str:
        engine: str = self.REBUILDS.get("ENGINE", BY_SIZE)
        return engine

    @property
    def rebuild_processes(self) -> int | None:
        """Processes of one rebuild; None: one for each core that may be used."""
        processes: int | None = self.REBUILDS.get("PROCESSES")
        return processes

    @property
    def rebuild_spark_from(self) -> int | None:
        """Return the streams of a store from which on a rebuild on one machine uses Spark, if nothing else is said;
        None if it never does."""
        streams: int | None = self.REBUILDS.get("SPARK_FROM")
        return streams

    @property
    def job_lease(self) -> float:
        seconds: float = self.JOBS.get("LEASE", 60.0)
        return seconds

    @property
    def job_time_limit(self) -> float:
        seconds: float = self.JOBS.get("TIME_LIMIT", 21_600.0)
        return seconds

    @property
    def job_attempts(self) -> int:
        attempts: int = self.JOBS.get("ATTEMPTS", 5)
        return attempts

    @property
    def export_directories(self) -> list[str]:
        """The directories and URIs that the admin offers for an export of events."""
        return list(self.JOBS.get("EXPORT_DIRECTORIES", []))

    @property
    def report_interval(self) -> float | None:
        """Between two rows of figures; None: none are written."""
        seconds: float | None = self.REPORTS.get("INTERVAL", 5.0)
        return seconds

    @property
    def report_retention(self) -> float:
        seconds: float = self.REPORTS.get("RETENTION", 3_600.0)
        return seconds

    @property
    def api(self) -> Mapping[str, Any]:
        return {**API_DEFAULTS, **self.API}

    @property
    def event_store_backend(self) -> str:
        return str(self.EVENT_STORE.get("BACKEND", POSTGRES))


KEYS = frozenset(field.name for field in dataclasses.fields(Conf))
NESTED_KEYS: Mapping[str, frozenset[str]] = {
    "QUEUE": frozenset({"BACKEND", "LOCATION", "OPTIONS"}),
    "EVENT_STORE": frozenset({"DATABASES", "BACKEND"}),
    "AGGREGATE_CACHE": frozenset({"MAX_AGGREGATES", "MAX_BYTES", "LOCATION", "PREFIX", "TTL", "WRITE_INTERVAL"}),
    "SNAPSHOTS": frozenset({"ENABLED"}),
    "SPARK": frozenset({"MASTER", "CONFIG", "PY_FILES", "REPLICAS", "DATABASE_TASKS"}),
    "BROKER": frozenset(BROKER_DEFAULTS),
    "API": frozenset(API_DEFAULTS),
    "REBUILDS": frozenset({"ENGINE", "PROCESSES", "SPARK_FROM"}),
    "JOBS": frozenset({"LEASE", "TIME_LIMIT", "ATTEMPTS", "EXPORT_DIRECTORIES"}),
    "REPORTS": frozenset({"INTERVAL", "RETENTION"}),
}


def given() -> Mapping[str, Any]:
    """``settings.ENODE`` as it stands; raises `ConfigurationError` if it, or one in it, is no dictionary."""
    value = getattr(settings, "ENODE", {})
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"ENODE must be a dictionary, got {value!r}")
    for key in NESTED_KEYS:
        if not isinstance(value.get(key, {}), Mapping):
            raise ConfigurationError(f"ENODE[{key!r}] must be a dictionary, got {value[key]!r}")
    options = value.get("QUEUE", {}).get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"ENODE['QUEUE']['OPTIONS'] must be a dictionary, got {options!r}")
    return value


@lru_cache(maxsize=1)
def conf() -> Conf:
    """The settings in force; unknown keys are left to the system check that refuses them."""
    return Conf(**{key: value for key, value in given().items() if key in KEYS})


def imported(path: str, key: str) -> Any:
    """Return what a dotted path in the settings names; raises `ConfigurationError` if it cannot be called."""
    try:
        found = import_string(path)
    except (ImportError, TypeError, ValueError) as error:
        missing = getattr(error, "name", None)
        how = '; install it: pip install "enode_django[redis]"' if missing == "redis" else ""
        raise ConfigurationError(f"ENODE {key} names {path!r}, which cannot be imported: {error}{how}") from error
    if not callable(found):
        raise ConfigurationError(f"ENODE {key} names {path!r}, which is no class or function; name one")
    return found


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ENODE":
        conf.cache_clear()


setting_changed.connect(_forget)
