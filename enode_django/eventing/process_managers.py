"""Process managers: events in, commands out, each command once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, ForwardRef, Generic, TypeGuard, TypeVar

from enode_django.bus.command_bus import CrashHandler, outbox_rows
from enode_django.bus.derived_ids import derived_id, with_id
from enode_django.domain.messages import Command
from enode_django.eventing.deadlines import CancelDeadline, Deadline
from enode_django.eventing.event_keys import EventKey
from enode_django.eventing.marks import HandlerMark, Method, check_markable, checked_mark
from enode_django.eventing.parameters import parameter_of
from enode_django.eventing.state_types import EventState, StateType, state_type
from enode_django.eventing.subscribers import NOW, Handler, Subscriber, is_declared, key_of, yielding_subscriber
from enode_django.exceptions import DefinitionError, shown
from enode_django.scheduling.due import Changes, DeadlineKey, Scheduled, due_of
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    State = TypeVarWithDefault("State", default=Any)
else:
    State = TypeVar("State")

Yielded = Command | Deadline | CancelDeadline


class ProcessManager(Subscriber, Generic[State]):
    """A subscriber that lets commands follow from events. Handlers are ``(self, event) -> Iterable[Command] | None``:
    they yield the commands that follow from an event, or from a stored refusal, and do nothing else. Besides commands
    they may yield a `Deadline` or a `CancelDeadline`.

    ``name`` must be stable: checkpoints and the ids of the commands depend on it. A new process manager begins with the
    events of *now* unless it says ``start = "beginning"``. ``resends``: commands that have had no effect when their
    queue is worked off are sent again, once. To find them, the handlers are called a second time for each event.

    For example::

        class Welcome(ProcessManager):
            name = "bank.welcome"

            @handles
            def opened(self, event: AccountOpened) -> Iterator[Command]:
                yield Deposit(event.aggregate_root_id, amount=Decimal(10))

        execute_command(OpenAccount("ada", owner="Ada"), wait_for=WaitFor.HANDLED)
        assert BankAccount.load("ada").balance == 10

    With a state, ``ProcessManager[SomeState]`` or ``state = SomeState``, handlers are ``(self, state, event) ->
    Iterable[Command] | None``. `starts` marks the handlers that begin a process, `ends` those that end one. State,
    checkpoint and commands are stored in one transaction, each event exactly once. Such a process manager does not
    resend. The state is one of two:

    - a dataclass whose fields have defaults. The handlers change the state of the process that an event's key names;
    - the class of the event that begins a process. The process keeps that event, which does not change.

    ``key``, a parameter of the class, is for handlers without a key of their own: a function of the event, or the name
    of a field. Then the key is this field of the event, or of the crashed command, and the aggregate root id of a
    message without it. If the state has a field of this name, it begins with the key.
    """

    abstract: ClassVar[bool] = True
    start = NOW
    replays = False
    resends: ClassVar[bool] = True
    state: ClassVar[type[Any] | None] = None
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"resends", "state"})
    _enode_handles_refusals = True
    _enode_may_yield: ClassVar[bool] = True
    _enode_crashes: ClassVar[tuple[type[Command], ...]] = ()
    _enode_state_type: ClassVar[StateType | None] = None
    _enode_key_field: ClassVar[str] = ""

    def __init_subclass__(cls, *, key: EventKey | str | None = None, **options: Any) -> None:
        _take_state(cls)
        super().__init_subclass__(_enode_key=None if key is None else _key_of_class(cls, key), **options)

    @classmethod
    def _enode_complete(cls) -> None:
        cls._enode_key_field = cls._enode_key.field if isinstance(cls._enode_key, FieldKey) else ""
        method = cls._enode_methods.get(CommandCrashed)
        cls._enode_crashes = () if method is None else _crashes_of(cls, method)
        if cls.state is not None:
            cls._enode_state_type = state_type(cls.state, cls.__qualname__)
            _check_process(cls)
        elif _has_open_state(cls) and is_declared(cls):
            raise DefinitionError(
                f"{cls.__qualname__} does not say which state {parameter_of(cls, ProcessManager)} is; derive it from a "
                "base with [SomeState], or write abstract = True into its body"
            )

    @classmethod
    def _enode_arguments_of_handlers(cls) -> tuple[str, ...]:
        return ("state", "event") if cls.state is not None or _has_open_state(cls) else ("event",)


def _key_of_class(cls: type[ProcessManager], key: EventKey | str) -> EventKey:
    """Return the function for the keys of messages, whose field may be given by its name."""
    if cls.state is None:
        raise DefinitionError(f"{cls.__qualname__} has a key and no state; derive it from ProcessManager[SomeState]")
    if isinstance(key, str) and key.isidentifier():
        return FieldKey(key)
    if not callable(key):
        raise DefinitionError(f"{cls.__qualname__} has key={key!r}; give it the name of a field, or a function")
    return key


@dataclasses.dataclass(frozen=True)
class FieldKey:
    """The key of a message that has it in a field."""

    field: str

    def __call__(self, message: Any) -> object:
        bearer = message.command if isinstance(message, CommandCrashed) else message
        return getattr(bearer, self.field, message.aggregate_root_id)


def _take_state(cls: type[ProcessManager]) -> None:
    """Take the state from the parameter of the class, unless that is a variable, or says nothing."""
    parameter = parameter_of(cls, ProcessManager)
    if parameter is Any or parameter is NoneType or isinstance(parameter, TypeVar):
        return
    if isinstance(parameter, ForwardRef):
        raise DefinitionError(
            f"{cls.__qualname__} is a ProcessManager of {parameter.__forward_arg__!r} in quotes; define the class "
            "above, and name it without quotes"
        )
    if cls.__dict__.get("state", parameter) is not parameter:
        raise DefinitionError(
            f"{cls.__qualname__} is a ProcessManager[{_name(parameter)}] with state = {shown(cls.state)}; leave state "
            "out, or correct one of them"
        )
    cls.state = parameter


def _name(parameter: Any) -> str:
    return getattr(parameter, "__name__", None) or shown(parameter)


def _has_open_state(cls: type[ProcessManager]) -> bool:
    """Return True for a generic class, whose subclasses name the state."""
    parameter = parameter_of(cls, ProcessManager)
    return cls.state is None and isinstance(parameter, TypeVar) and parameter is not State


def _check_process(cls: type[ProcessManager]) -> None:
    if cls.__dict__.get("resends", False):
        raise DefinitionError(
            f"{cls.__qualname__} has a state and resends = True, but its handlers cannot be called again for an event; "
            "leave resends out"
        )
    if not is_declared(cls):
        return
    beginning = [message for message, method in cls._enode_methods.items() if mark_of(cls, method).starts]
    if not beginning:
        raise DefinitionError(
            f"{cls.__qualname__} has a state, but none of its processes ever begins; mark a handler with @starts"
        )
    if isinstance(cls._enode_state_type, EventState):
        state = cls._enode_state_type.cls
        for message in beginning:
            if not issubclass(message, state):
                raise DefinitionError(
                    f"{cls.__qualname__} keeps the {state.__qualname__} that begins a process, but "
                    f"{message.__qualname__} begins one, too; give it a dataclass as its state, or mark handlers of "
                    f"{state.__qualname__} alone with @starts"
                )


def mark_of(cls: type[Subscriber], method: str) -> HandlerMark:
    """Return the mark that the method was given by the nearest class that marks it."""
    return cls._enode_marks.get(method, HandlerMark())


def has_state(subscriber: Subscriber) -> TypeGuard[ProcessManager]:
    """Return True for a process manager with a state."""
    return isinstance(subscriber, ProcessManager) and subscriber.state is not None


def can_resend(subscriber: Subscriber) -> bool:
    """Return True for a process manager whose lost commands are found by calling its handlers a second time."""
    return isinstance(subscriber, ProcessManager) and subscriber.state is None and subscriber.resends


def handles_crash(
    *commands: type[Command], key: Callable[[CommandCrashed], str | None] | None = None, ends: bool = False
) -> Callable[[Method], Method]:
    """Mark the method of a process manager that handles the crashes of commands of these classes, and their subclasses,
    which this process manager has sent. It gets a `CommandCrashed` when an exception that is not a refusal has ended
    one, and yields the commands that follow. Other crashed commands become dead letters. ``key`` is that of
    `handles`; with ``ends`` the process has ended after the handler. A method that also handles events or refusals has
    `handles` or `ends` above, with the key. Raises `DefinitionError`.

    For example::

        class Transfers(ProcessManager):
            name = "bank.reserving"

            @handles_crash(ReserveWithdrawal, ReserveDeposit)
            def not_reserved(self, crash: CommandCrashed) -> Iterator[Command]:
                assert isinstance(crash.command, ReserveWithdrawal | ReserveDeposit)  # for type checkers
                yield CancelTransfer(crash.command.transfer, reason="It could not be carried out.")
    """
    if not commands:
        raise DefinitionError("handles_crash() names no command; write @handles_crash(SomeCommand)")
    for cls in commands:
        if not (isinstance(cls, type) and issubclass(cls, Command)):
            raise DefinitionError(f"handles_crash() takes classes of commands, got {cls!r}")
    marked_as = None if key is None and not ends else checked_mark("handles_crash", HandlerMark(key, ends=ends))

    def mark(method: Method) -> Method:
        check_markable("handles_crash", method)
        method._enode_handles = (CommandCrashed,)  # type: ignore[attr-defined]
        method._enode_crashes = commands  # type: ignore[attr-defined]
        method._enode_mark = marked_as  # type: ignore[attr-defined]
        return method

    return mark


def crash_handler(subscriber: Subscriber) -> CrashHandler:
    """Return a function that takes a command sent by the subscriber. It returns the subscriber's key if the subscriber
    handles crashes of the command, else an empty text."""
    handled = subscriber._enode_crashes if isinstance(subscriber, ProcessManager) else ()
    return lambda command: key_of(subscriber) if isinstance(command, handled) else ""


def _crashes_of(cls: type[ProcessManager], method: str) -> tuple[type[Command], ...]:
    """Return the command classes that `handles_crash` was given for the method, from the class that defines it."""
    for base in cls.__mro__:
        marked: tuple[type[Command], ...] | None = getattr(vars(base).get(method), "_enode_crashes", None)
        if marked is not None:
            return marked
    return ()


def yielded_by(manager: Subscriber, cause: str, handler: Handler, *arguments: Any) -> Sequence[Yielded]:
    """Call a handler of a process manager. Return what it yields, the commands with ids derived from their cause.
    Raises what the handler raises; inside of it `enode_django.send_command` raises `SendInsideHandler`."""
    token = yielding_subscriber.set(manager.name)
    try:
        yielded = handler(*arguments)
        return () if yielded is None else list(with_derived_ids(yielded, cause=cause, subscriber=key_of(manager)))
    finally:
        yielding_subscriber.reset(token)


def with_derived_ids(yielded: Iterable[object] | Command, *, cause: str, subscriber: str) -> Iterator[Yielded]:
    """Yield what a handler has yielded, the commands with ids derived from their cause: a repeat gives the same ids.

    ``cause`` is the id of the event or refusal. Commands of one class for one aggregate are told apart by counting
    them; the order of others does not matter. A class counts by its oldest alias, so that renaming it changes no id.
    Commands of deadlines are counted with the others. Raises `DefinitionError` for any other value.
    """
    if isinstance(yielded, Command | Deadline | CancelDeadline):
        raise DefinitionError(f"{subscriber} returns {yielded!r}; let its handler yield it")
    seen: Counter[tuple[str, str]] = Counter()

    def derived(command: Command) -> Command:
        key = (types.first_name_of(type(command)), command.aggregate_root_id)
        seen[key] += 1
        return with_id(command, derived_id(cause, subscriber, *key, seen[key]))

    for one in yielded:
        if isinstance(one, Command):
            yield derived(one)
        elif isinstance(one, Deadline):
            yield dataclasses.replace(one, command=derived(one.command))
        elif isinstance(one, CancelDeadline):
            yield one
        else:
            unpacked = "; write yield from" if isinstance(one, list | tuple) else ""
            raise DefinitionError(f"{subscriber} yields {one!r}, which is not a command or a deadline{unpacked}")


def deadline_changes(yielded: Iterable[Yielded], subscriber: Subscriber, event: Any, scope: str = "") -> Changes:
    """Return what the deadlines among ``yielded`` (of `yielded_by`) change, the last one of each name. ``event``
    is the event or the refusal that they follow from; their ``scope`` is by default its aggregate."""
    changes: dict[DeadlineKey, Scheduled | None] = {}
    for one in yielded:
        if isinstance(one, Command):
            continue
        key = DeadlineKey(key_of(subscriber), scope or event.aggregate_root_id, one.name)
        changes[key] = None if isinstance(one, CancelDeadline) else _scheduled(one, subscriber, event)
    return changes


def _scheduled(deadline: Deadline, subscriber: Subscriber, event: Any) -> Scheduled:
    metadata = dataclasses.replace(event.metadata, causation_id=event.id)
    (row,) = outbox_rows([(deadline.command, metadata)], crash_handler(subscriber))
    return Scheduled(row, due_of(deadline.at, deadline.after, event.timestamp))
