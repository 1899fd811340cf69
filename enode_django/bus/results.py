"""The result of a command, as its sender sees it, and as it travels."""

from __future__ import annotations

import dataclasses
import traceback
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self

from enode_django.domain.messages import ResultT
from enode_django.domain.refusals import DomainException, UnknownRefusal, refusal_with_result, restored_refusal
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import LONGEST_ERROR_TEXT, CommandFailed, MalformedMessage, error_text
from enode_django.serialization.codec import StoredRefusal, current_fields, read_stored
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from enode_django.eventing.subscribers import Subscriber

ANSWER = b"\x01"
"""The first byte of an answer. Notices share the inbox and begin with another byte."""
RECEIPT_MAX_BYTES = 8_192
"""The most bytes of a receipt that keeps its value and fields. A failure takes less."""


class CommandStatus(Enum):
    """The kind of a command's outcome.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        result = try_command(Withdraw("ada", amount=Decimal(5)))
        assert result.status is CommandStatus.REFUSED
    """

    SUCCESS = "success"
    """Its events are durable."""
    NOTHING_CHANGED = "nothing_changed"
    """It was handled and changed nothing."""
    REFUSED = "refused"
    """A domain exception refused it: it took no effect, and never will."""
    FAILED = "failed"
    """Another exception ended it: it took no effect, and never will."""


@dataclasses.dataclass(frozen=True, slots=True)
class WaitFor:
    """The point up to which `execute_command` waits. Use the values and the method below, not the constructor.

    ``handling``: also wait for subscribers. ``only`` is the name or class of the one to wait for; None stands for all
    that handle one of the command's events.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"), wait_for=WaitFor.HANDLED)
        execute_command(Deposit("ada", amount=Decimal(5)), wait_for=WaitFor.subscriber("bank.transfers"))
    """

    handling: bool = False
    only: str | type[Subscriber] | None = None

    EXECUTED: ClassVar[WaitFor]
    """Wait until the outcome is durable."""
    HANDLED: ClassVar[WaitFor]
    """Wait also until every subscriber that handles one of the command's events has committed it, or has parked the
    aggregate."""

    @classmethod
    def subscriber(cls, only: str | type[Subscriber]) -> WaitFor:
        """Wait as `HANDLED` does, but only for one projection, process manager or group of event handlers."""
        return cls(True, only)


WaitFor.EXECUTED = WaitFor()
WaitFor.HANDLED = WaitFor(True)


_NO_VALUE: Any = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult(Generic[ResultT]):
    """The outcome of a command, as its sender sees it.

    ``value`` is what the handler set; ``version`` the aggregate's after the command (None if it has none);
    ``event_types`` the stored names of its events, each once.

    ``error_type`` is the type name of the domain exception that refused the command, or the class name of the exception
    that it failed with; ``error_fields`` are the plain fields of the domain exception.

    ``parked`` names those of the awaited subscribers that have parked the aggregate at or before this version. They
    have not handled the command's events, and may need help to do so.

    For example::

        result = execute_command(OpenAccount("ada", owner="Ada"))
        assert (result.status, result.version) == (CommandStatus.SUCCESS, 1)
        assert result.event_types == ("bank.AccountOpened",)
    """

    status: CommandStatus
    command_id: str
    aggregate_root_id: str
    version: int | None = None
    value: ResultT = _NO_VALUE
    error_type: str = ""
    error_message: str = ""
    error_fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    event_types: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    @property
    def error(self) -> DomainException | CommandFailed | None:
        """The exception that `execute_command` raises for this result, a new one each time; None if there is none.

        A domain exception has its class and its typed fields. If the class is unknown here, or does not have these
        fields, it is an `UnknownRefusal`.
        """
        if self.status is CommandStatus.REFUSED:
            return refusal_with_result(_refusal_of(self), self)
        if self.status is CommandStatus.FAILED:
            what = f"command {self.command_id!r} for {self.aggregate_root_id!r} failed"
            return CommandFailed(f"{what}: {self.error_type}: {self.error_message}", result=self)
        return None

    def raise_for_status(self) -> Self:
        """Raise the `error` of a command that was refused or failed; otherwise return the result itself."""
        error = self.error
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which holds it
        return self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crash(CommandResult):
    """A failure by an exception that is not a refusal, as the worker has it. Its sender gets a plain result.

    ``traceback`` is empty if the sender waits for the answer, unless the command could not be handled at all.
    ``is_told``: the sender of this command, or of a copy of it, gets this answer, so it is final. ``is_conflict``: the
    command has the ids of another one (see `identity`), so this must not be remembered as the outcome of these ids.
    """

    traceback: str = dataclasses.field(default="", compare=False)
    is_told: bool = dataclasses.field(default=False, compare=False)
    is_conflict: bool = dataclasses.field(default=False, compare=False)


def crash(
    command_id: str, aggregate_root_id: str, error: BaseException, *, with_traceback: bool, is_told: bool
) -> Crash:
    return Crash(
        status=CommandStatus.FAILED,
        command_id=command_id,
        aggregate_root_id=aggregate_root_id,
        error_type=error_type_of(error),
        error_message=error_text(error),
        traceback="".join(traceback.format_exception(error)) if with_traceback else "",
        is_told=is_told,
    )


def failure(command_id: str, aggregate_root_id: str, error: BaseException) -> CommandResult:
    return CommandResult(
        status=CommandStatus.FAILED,
        command_id=command_id,
        aggregate_root_id=aggregate_root_id,
        error_type=error_type_of(error),
        error_message=error_text(error),
    )


def error_type_of(error: BaseException) -> str:
    """Return the name of the class, without dots: a name with dots stands for a refusal."""
    return type(error).__name__.rpartition(".")[2]


def stored_result(record: StreamRecord) -> CommandResult:
    """Return the outcome that a stored row represents. Raises `MalformedMessage`.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        (record,) = make_store().load("ada")
        assert stored_result(record).status is CommandStatus.SUCCESS
    """
    stored = read_stored(record.events)
    if isinstance(stored, StoredRefusal):
        status, error_type, error_fields = _ending_of(stored.type_name, current_fields(stored))
        return CommandResult(
            status=status,
            command_id=record.command_id,
            aggregate_root_id=record.aggregate_root_id,
            error_type=error_type,
            error_message=stored.message,
            error_fields=error_fields,
        )
    return CommandResult(
        status=CommandStatus.SUCCESS,
        command_id=record.command_id,
        aggregate_root_id=record.aggregate_root_id,
        version=record.version,
        value=stored.result,
        event_types=tuple(dict.fromkeys(event.type_name for event in stored.events)),
    )


def encode_result(result: CommandResult) -> bytes:
    """Encode all but ``parked``, which only the waiting sender knows."""
    return ANSWER + pack(
        (
            result.status.value,
            result.command_id,
            result.aggregate_root_id,
            result.version,
            result.value,
            result.error_type,
            result.error_message.encode(errors="replace").decode(),
            result.error_fields,
            result.event_types,
        )
    )


class Receipt(NamedTuple):
    """An answer without a row. ``content`` is that of its command (see `identity.content_of`); empty if unknown."""

    answer: CommandResult
    content: str


def encode_receipt(result: CommandResult, content: str = "") -> bytes:
    """Encode an answer without a row, in a bounded size: a large one loses its value, its fields and most of its text.

    ``content`` is that of its command (see `Receipt`). It takes the place of the types of events, which such results do
    not have.
    """
    result = dataclasses.replace(result, event_types=(content,)) if content else result
    body = encode_result(result)
    if len(body) <= RECEIPT_MAX_BYTES:
        return body
    text = result.error_message[:LONGEST_ERROR_TEXT]
    return encode_result(dataclasses.replace(result, value=None, error_message=text, error_fields={}))


def decode_receipt(body: bytes) -> Receipt:
    """Decode a receipt. Raises `MalformedMessage`."""
    result = decode_result(body)
    content = result.event_types[0] if result.event_types else ""
    return Receipt(dataclasses.replace(result, event_types=()), content)


def decode_result(body: bytes) -> CommandResult:
    """Decode a result. Raises `MalformedMessage`."""
    try:
        if not body.startswith(ANSWER):
            raise ValueError("they begin otherwise")
        said, command_id, aggregate_root_id, version, value, error_type, text, fields, events = unpack(body[1:])
        return CommandResult(
            status=CommandStatus(said),
            command_id=command_id,
            aggregate_root_id=aggregate_root_id,
            version=version,
            value=value,
            error_type=error_type,
            error_message=text,
            error_fields=fields,
            event_types=tuple(events),
        )
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are not a result of ours: {error}") from error


def _ending_of(type_name: str, fields: dict[str, Any]) -> tuple[CommandStatus, str, dict[str, Any]]:
    """Return status, ``error_type`` and ``error_fields`` for a stored refusal, which may be a crash."""
    if type_name == types.name_of(CommandCrashed):
        return CommandStatus.FAILED, str(fields.get("error_type", type_name)), {}
    return CommandStatus.REFUSED, type_name, fields


def _refusal_of(refused: CommandResult) -> DomainException:
    try:
        cls = types.class_of(DomainException, refused.error_type)
        return restored_refusal(cls, refused.error_message, refused.error_fields)
    except Exception:  # field types are application code, too
        return UnknownRefusal(refused.error_message)
