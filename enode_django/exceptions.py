"""Every error of the package, on one page.

EnodeError
├── DomainException                  a business refusal (in ``enode_django.domain.refusals``: it has typed fields)
│   ├── VersionMismatch              the aggregate has another version than the command's sender expected (there, too)
│   ├── ValueTaken                   a value that must be unique belongs to another aggregate (there, too)
│   └── UnknownRefusal               a refusal whose class is unknown to the command's sender (there, too)
├── MessageError                     a message that cannot be made, encoded or decoded
│   ├── InvalidField                 a value that does not fit its field
│   │   └── InvalidFields            several such values, each with its place
│   ├── InvalidId                    an id that is empty, too long, or holds a NUL
│   ├── UnknownMessageType           no class is registered under this name (retriable: a deploy may be under way)
│   ├── MalformedMessage             bytes that are not a message of this package
│   └── MessageTooLarge              an encoded value above the configured limit
├── DefinitionError                  a class or function that is declared wrongly
│   ├── DuplicateHandler             two handlers for one command
│   └── TypeNameError                no type name can be given, or two classes share one
├── AggregateError
│   ├── AggregateNotFound
│   ├── AggregateAlreadyExists
│   ├── AggregateNotAdded            a new aggregate has events but was not passed to ``context.add``
│   ├── AggregateReadOnly            an event was applied to an aggregate that was loaded for reading
│   ├── AggregateTypeMismatch        the id belongs to an aggregate of another type
│   ├── ForeignAggregateChanged      a command changed or added an aggregate that is not its own
│   ├── ApplierNotFound              an aggregate has no method for the event it applies
│   ├── BrokenHistory                stored versions do not join
│   └── HistoryTooLong               more streams than the caller allows to be replayed
├── CommandError
│   ├── HandlerNotFound
│   ├── CommandFailed                an exception that is not a refusal has ended the command
│   ├── CommandTimeout               no answer in time; the command goes on
│   ├── CommandKilledWorker          the command ended its worker process repeatedly
│   ├── CommandIdReused              the command has the id of another one: of another type, or with other fields
│   ├── Retry                        retriable: raised by a handler to be called again
│   ├── ExecuteInsideHandler         ``execute_command`` was called by a handler
│   ├── SendInsideHandler            a handler of a projection or a process manager sent a command
│   ├── SendInsideTest               a test would send to the queue of the settings: outside of ``inline()``
│   └── WaitInsideTransaction        waiting for subscribers inside an atomic block, whose locks they may wait for
├── SubscriberError
│   ├── UnknownSubscriber            no projection, process manager or group of event handlers has that name
│   ├── NotParked                    the subscriber has not parked the aggregate
│   ├── TooManyWaiting               an event came for a process for which too many others wait to begin
│   ├── EventKilledWorker            the event ended its worker process repeatedly: its aggregate is parked
│   ├── SubscriberUnavailable        retriable: a database or the queue that a subscriber needs is unavailable
│   └── RebuildError                 a projection cannot be rebuilt, or its new tables cannot replace the live ones
│       ├── RebuildOvertaken         another rebuild of the same projection has begun
│       ├── ProjectionsDiffer        the rebuilt tables differ from those in use
│       └── TablesInUse              retriable: the tables could not be locked
├── SnapshotError
│   ├── InvalidState                 an aggregate's state does not fit into a snapshot
│   └── UnusableSnapshot             a stored snapshot cannot be used: the aggregate is loaded from its first stream on
├── StoreError
│   ├── CorrectionRefused            a correction of stored events is invalid, or would do harm
│   │   └── CorrectionOutdated       somebody else has corrected the same events meanwhile
│   ├── StagingLost                  the staged data of a Spark job is gone: run the job again
│   └── StoreUnavailable             retriable: connection lost, server restarting, timeout, deadlock
│       ├── StoreFailing             disk full, damage, a missing table or privilege: somebody has to mend the database
│       └── ShardMapOutdated         a shard owns other buckets than the writer knew; the writer asks again
├── JobError
│   ├── JobRunning                   another run holds the lease on the same work
│   ├── JobStopped                   the work has to end
│   │   ├── JobCancelled             its cancellation was requested
│   │   ├── JobTimeout               it has lasted longer than its time limit
│   │   └── JobLost                  its lease could not be renewed in time, or was taken over by another run
│   └── UnknownJob                   there is no such job, or it has ended
├── ArchiveError                     an archive of events that is missing, damaged or of a later format
│   ├── ArchiveMismatch              it holds another history than the event store
│   └── ArchiveBusy                  retriable: another export is writing to it
├── QueueError
│   ├── TransportUnavailable         retriable: the queue cannot be reached
│   │   ├── PartlyUnavailable        one of several servers cannot be reached: ``answers`` holds what the others did
│   │   ├── QueueFull                it has no room at the moment (disk, memory, a watermark): nothing was stored
│   │   ├── StorageFailed            its disk did not keep what was written: the broker stops and must be restarted
│   │   └── ForeignEntries           somebody else has written into a queue: ``manage.py enode queue mend`` deletes it
│   ├── UnknownTopic
│   │   └── TopicDeleted             it was deleted and not created again
│   ├── UnknownQueue                 the topic does not have a queue of this number
│   ├── StaleRoute                   retriable: the topic has other queues than the sender knew
│   ├── QueueBacklog                 keys cannot move while messages are unfinished
│   ├── QueueHeld                    retriable: another owner holds a valid lease
│   ├── MalformedRecords             the bytes of a batch are not those of a producer
│   ├── MalformedFrame               bytes that are not a message between a broker and its clients, or too many
│   ├── BadRequest                   the broker does not accept the request with these arguments
│   │   └── UnknownRequest           the broker is of an earlier version that does not have the request
│   ├── RoleMissing                  the client's secret does not have the role that a request needs
│   └── DirectoryInUse               another broker works in the directory
├── SparkUnavailable                 PySpark or Java is missing, or too old
├── SparkFailed                      Spark's Java process ended a job with an error
└── ConfigurationError               a setting that cannot be used
    └── ShardMismatch                the databases of the settings are not the shards of one event store

``retriable`` is True if the same call may succeed later without any change. No retry looks at an error's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 200
LONGEST_ERROR_TEXT = 1_000
"""The most characters of an exception's text that reach the sender."""
LONGEST_RETRY = 365 * 86_400
"""The most seconds of a `Retry`. Clocks and locks of Python have a limit."""


def shown(value: object) -> str:
    """Return the ``repr`` of a value, cut to a bounded length; never raises (``repr`` does for huge integers)."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__} without repr: {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def printable(text: str, keep: str = "") -> str:
    """Return the text with escapes for unprintable characters, except those in ``keep``.

    >>> printable("a\\x1b[2J\\nb\\u202e"), printable("a\\n", keep="\\n")
    ('a\\\\x1b[2J\\\\nb\\\\u202e', 'a\\n')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def error_text(error: BaseException) -> str:
    """Return the text of an exception, cut to a bounded length; never raises."""
    try:
        text = str(error)
        return text if len(text) <= LONGEST_ERROR_TEXT else f"{text[:LONGEST_ERROR_TEXT]}…"
    except Exception as broken:  # application code: a __str__ that fails must not fail the worker
        return f"its text cannot be had: {type(broken).__name__}"


class EnodeError(Exception):
    retriable = False
    needs_help = False
    """A retry succeeds only after somebody has repaired something."""


class MessageError(EnodeError): ...


class InvalidField(MessageError, ValueError): ...


Path = tuple[str | int, ...]
"""The place of a value: names of fields, keys, numbers of items."""


class InvalidFields(InvalidField):
    """Several invalid values. ``errors`` are the texts by place; the place of the whole is ``()``."""

    def __init__(self, errors: Mapping[Path, str]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, path)) or 'all'}: {text}" for path, text in errors.items()))
        self.errors: Mapping[Path, str] = errors


class InvalidId(MessageError, ValueError): ...


class UnknownMessageType(MessageError):
    retriable = True


class MalformedMessage(MessageError): ...


class MessageTooLarge(MessageError): ...


class DefinitionError(EnodeError, TypeError): ...


class DuplicateHandler(DefinitionError): ...


class TypeNameError(DefinitionError): ...


class AggregateError(EnodeError): ...


class AggregateNotFound(AggregateError): ...


class AggregateAlreadyExists(AggregateError): ...


class AggregateNotAdded(AggregateError): ...


class AggregateReadOnly(AggregateError): ...


class AggregateTypeMismatch(AggregateError): ...


class ForeignAggregateChanged(AggregateError): ...


class ApplierNotFound(AggregateError): ...


class BrokenHistory(AggregateError): ...


class HistoryTooLong(AggregateError): ...


class CommandError(EnodeError): ...


class HandlerNotFound(CommandError): ...


class CommandFailed(CommandError):
    """``result`` is the command's `CommandResult`; the ids, ``error_type`` and ``error_message`` are copied from it."""

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
        self.command_id: str = getattr(result, "command_id", "")
        self.aggregate_root_id: str = getattr(result, "aggregate_root_id", "")
        self.error_type: str = getattr(result, "error_type", "")
        self.error_message: str = getattr(result, "error_message", "")


class CommandTimeout(CommandError, TimeoutError):
    """``executed`` is the `CommandResult` if it arrived; ``missing`` then names the awaited subscribers that have not
    reported its events as handled."""

    def __init__(self, message: str, *, executed: Any = None, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.executed = executed
        self.missing = missing


class CommandKilledWorker(CommandError): ...


class CommandIdReused(CommandError): ...


class Retry(CommandError):
    """Raise it in a handler that cannot do its work at the moment. The handler is called again in ``after`` seconds; if
    that is None, in ``RETRY_DELAY`` seconds, doubled for each further attempt. After ``ATTEMPTS`` a command fails; an
    event is retried without end. Raises `ValueError` if ``after`` is not a number of seconds from 0 to a year
    (`LONGEST_RETRY`).

    For example::

        @event_handler
        def send_letter(event: AccountOpened) -> None:
            if datetime.now(UTC).hour < 8:
                raise Retry("the printer is off at night", after=3600)
            print(f"Dear {event.owner}")
    """

    retriable = True

    def __init__(self, message: str = "handle the command again", *, after: float | None = None) -> None:
        is_number = isinstance(after, int | float) and not isinstance(after, bool)
        if after is not None and not (is_number and 0 <= after <= LONGEST_RETRY):
            raise ValueError(f"after is {shown(after)}; it must be a number of seconds from 0 to a year, or None")
        super().__init__(message)
        self.after = after


class ExecuteInsideHandler(CommandError): ...


class SendInsideHandler(CommandError): ...


class SendInsideTest(CommandError): ...


class WaitInsideTransaction(CommandError): ...


class SubscriberError(EnodeError): ...


class UnknownSubscriber(SubscriberError): ...


class NotParked(SubscriberError): ...


class TooManyWaiting(SubscriberError): ...


class EventKilledWorker(SubscriberError): ...


class SubscriberUnavailable(SubscriberError):
    retriable = True
    waiting: str = ""
    """The name of the subscriber, if the database answers, and lacks a table or a column."""


class RebuildError(SubscriberError): ...


class RebuildOvertaken(RebuildError): ...


class ProjectionsDiffer(RebuildError): ...


class TablesInUse(RebuildError):
    retriable = True


class SnapshotError(EnodeError): ...


class InvalidState(SnapshotError):
    """``concerns_class`` is True if no aggregate of the class can have a snapshot."""

    concerns_class = False


class UnusableSnapshot(SnapshotError): ...


class StoreError(EnodeError): ...


class CorrectionRefused(StoreError): ...


class CorrectionOutdated(CorrectionRefused): ...


class StagingLost(StoreError): ...


class StoreUnavailable(StoreError):
    retriable = True


class StoreFailing(StoreUnavailable):
    needs_help = True


class ShardMapOutdated(StoreUnavailable): ...


class JobError(EnodeError): ...


class JobRunning(JobError):
    """``job_id`` is the id of the other job; ``task_id`` is that of the Celery task that runs it, or empty."""

    def __init__(self, message: str, *, job_id: int, task_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.task_id = task_id


class JobStopped(JobError): ...


class JobCancelled(JobStopped): ...


class JobTimeout(JobStopped, TimeoutError): ...


class JobLost(JobStopped): ...


class UnknownJob(JobError): ...


class ArchiveError(EnodeError): ...


class ArchiveMismatch(ArchiveError): ...


class ArchiveBusy(ArchiveError):
    retriable = True


class QueueError(EnodeError): ...


class TransportUnavailable(QueueError, ConnectionError):
    retriable = True


class PartlyUnavailable(TransportUnavailable):
    """One of several servers that hold the queues cannot be used. ``answers`` holds the results of the others by queue
    (see each method of `Transport`); these need not be repeated. Calls about other queues may succeed."""

    def __init__(self, message: str, *, answers: Mapping[int, Any] | None = None) -> None:
        super().__init__(message)
        self.answers: Mapping[int, Any] = answers or {}


class QueueFull(TransportUnavailable): ...


class ForeignEntries(TransportUnavailable): ...


class UnknownTopic(QueueError): ...


class TopicDeleted(UnknownTopic):
    """Producers and consumers that create missing topics do not create this one: it must be created explicitly."""


class UnknownQueue(QueueError): ...


class StaleRoute(QueueError):
    """``stored`` maps each queue that had already stored its messages to the offset of the first one."""

    retriable = True

    def __init__(self, message: str, *, stored: Mapping[int, int] | None = None) -> None:
        super().__init__(message)
        self.stored: Mapping[int, int] = stored or {}


class QueueBacklog(QueueError): ...


class QueueHeld(QueueError):
    """``owner`` holds the queue for ``seconds`` more, and longer if it renews its lease."""

    retriable = True

    def __init__(self, message: str, *, owner: str, seconds: float) -> None:
        super().__init__(message)
        self.owner = owner
        self.seconds = seconds


class MalformedRecords(QueueError, ValueError): ...


class MalformedFrame(QueueError, ValueError): ...


class BadRequest(QueueError): ...


class UnknownRequest(BadRequest): ...


class RoleMissing(QueueError): ...


class DirectoryInUse(QueueError): ...


class StorageFailed(TransportUnavailable): ...


class SparkUnavailable(EnodeError):
    """The message names what to install."""


class SparkFailed(EnodeError):
    """A job failed in Spark's Java process. The message is the Java exception with its stack."""


class ConfigurationError(EnodeError): ...


class ShardMismatch(ConfigurationError): ...


def missing_extra(extra: str, error: ImportError) -> ModuleNotFoundError:
    """Return the error to raise if a module that comes with ``extra`` could not be imported."""
    what = error.name or str(error)
    return ModuleNotFoundError(f'{what} is not installed; install it: pip install "enode_django[{extra}]"', name=what)
