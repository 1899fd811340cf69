"""`handles` marks methods that handle events; `starts` and `ends` those of process managers with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, overload

from enode_django.domain.annotations import handled_classes, is_bare, is_method
from enode_django.domain.class_bodies import check_marked_once
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventing.event_keys import EventKey, EventKeys, event_key
from enode_django.exceptions import DefinitionError
from enode_django.serialization.crashes import CommandCrashed

Followed = type[DomainEvent] | type[DomainException]
Method = TypeVar("Method", bound=Callable[..., Any])

Event = TypeVar("Event", bound=DomainEvent | DomainException)
E1 = TypeVar("E1", bound=DomainEvent | DomainException)
E2 = TypeVar("E2", bound=DomainEvent | DomainException)
E3 = TypeVar("E3", bound=DomainEvent | DomainException)
E4 = TypeVar("E4", bound=DomainEvent | DomainException)
E5 = TypeVar("E5", bound=DomainEvent | DomainException)
Owner = TypeVar("Owner")
Row = TypeVar("Row")
Result = TypeVar("Result")


class MarksMethod(Protocol[Event]):
    """The type of ``@handles(SomeEvent)`` for type checkers: the method takes all of these events."""

    @overload
    def __call__(self, method: Callable[[Owner, Event], Result], /) -> Callable[[Owner, Event], Result]: ...
    @overload
    def __call__(self, method: Callable[[Owner, Row, Event], Result], /) -> Callable[[Owner, Row, Event], Result]: ...


class HandlerMark(NamedTuple):
    """The options of a handler, as its decorator was given them. ``key`` returns the key of the row or process that an
    event concerns, or None if it concerns none. A process begins with the event if the handler ``starts`` it. It ends
    with the event if the handler ``ends`` it, and ``when``, if there is one, returns True for the state. With ``join``
    the handler is called once a process, when it has had an event of each class."""

    key: EventKey | None = None
    starts: bool = False
    ends: bool = False
    when: Callable[[Any], bool] | None = None
    join: bool = False


class OneOptions(TypedDict, Generic[Event], total=False):
    """The options of `handles` for one class of events, for type checkers."""

    creates: bool
    key: Callable[[Event], object]
    keys: Callable[[Event], Iterable[object]]


class Options(OneOptions[Event], Generic[Event], total=False):
    join: bool


@overload
def handles(one: type[E1], /, **options: Unpack[OneOptions[E1]]) -> MarksMethod[E1]: ...
@overload
def handles(one: type[E1], two: type[E2], /, **options: Unpack[Options[E1 | E2]]) -> MarksMethod[E1 | E2]: ...
@overload
def handles(
    one: type[E1], two: type[E2], three: type[E3], /, **options: Unpack[Options[E1 | E2 | E3]]
) -> MarksMethod[E1 | E2 | E3]: ...
@overload
def handles(
    one: type[E1], two: type[E2], three: type[E3], four: type[E4], /, **options: Unpack[Options[E1 | E2 | E3 | E4]]
) -> MarksMethod[E1 | E2 | E3 | E4]: ...
@overload
def handles(
    one: type[E1],
    two: type[E2],
    three: type[E3],
    four: type[E4],
    five: type[E5],
    /,
    **options: Unpack[Options[E1 | E2 | E3 | E4 | E5]],
) -> MarksMethod[E1 | E2 | E3 | E4 | E5]: ...
@overload
def handles(**options: Unpack[Options[Any]]) -> Callable[[Method], Method]: ...
@overload
def handles(*followed: Followed, creates: bool = ..., join: bool = ...) -> Callable[[Method], Method]: ...
@overload
def handles(method: Method, /) -> Method: ...
def handles(
    *followed: Any,
    creates: bool = False,
    key: EventKey | None = None,
    keys: EventKeys | None = None,
    join: bool = False,
) -> Any:
    """Mark a method of a subscriber as the handler of these classes of events and their subclasses; without a class, of
    those that the annotation of its event names.

    Process managers and event handlers may also handle domain exceptions: refusals that were stored. ``creates`` is for
    a `ModelProjection` or `MultiProjection`: once a handler says so, the others are called only for a row that exists.
    ``key`` is for a `MultiProjection`, where it returns the key of the row, and for a process manager with a ``state``,
    where it returns the key of the process (by default that of the class). It returns None for an event that concerns
    none. ``keys`` is for a `MultiProjection` whose events change several rows: it returns the keys of all of them, and
    the handler is called with each row. ``join`` is for a process manager with a ``state``: the handler is called once
    for each process, with the event that completes one of each of its classes. Raises `DefinitionError`.

    For example::

        class Welcome(ProcessManager):
            name = "bank.welcome"

            @handles
            def opened(self, event: AccountOpened) -> Iterator[Command]:
                yield Deposit(event.aggregate_root_id, amount=Decimal(10))
    """
    mark = HandlerMark(event_key("handles()", key, keys), join=join)
    return _marking("handles", followed, creates, None if mark == HandlerMark() else mark)


@overload
def starts(one: type[E1], /, *, key: Callable[[E1], str | None] = ...) -> MarksMethod[E1]: ...
@overload
def starts(*, key: Callable[[Any], str | None] = ...) -> Callable[[Method], Method]: ...
@overload
def starts(one: type[E1], two: type[E2], /, *, key: Callable[[E1 | E2], str | None] = ...) -> MarksMethod[E1 | E2]: ...
@overload
def starts(
    one: Followed, two: Followed, three: Followed, /, *more: Followed, key: Callable[[Any], str | None] = ...
) -> Callable[[Method], Method]: ...
@overload
def starts(method: Method, /) -> Method: ...
def starts(*followed: Any, key: Callable[[Any], str | None] | None = None) -> Any:
    """Mark a method of a process manager as `handles` does. If the ``key`` has no state yet, these events begin one.

    The handler gets a new state, whose fields have their defaults, or the one that is there. A key begins once: after
    its process has ended, events of that key are passed over. Raises `DefinitionError`.

    For example::

        class Greetings(ProcessManager):
            name = "bank.greetings"
            state = Greeting  # a dataclass

            @starts
            def opened(self, greeting: Greeting, event: AccountOpened) -> None:
                greeting.owner = event.owner
    """
    return _marking("starts", followed, False, HandlerMark(key, starts=True))


class OneEndOptions(TypedDict, Generic[Event], total=False):
    """The options of `ends` for one class of events, for type checkers."""

    key: Callable[[Event], str | None]
    when: Callable[[Any], bool]


class EndOptions(OneEndOptions[Event], Generic[Event], total=False):
    join: bool


@overload
def ends(one: type[E1], /, **options: Unpack[OneEndOptions[E1]]) -> MarksMethod[E1]: ...
@overload
def ends(**options: Unpack[EndOptions[Any]]) -> Callable[[Method], Method]: ...
@overload
def ends(one: type[E1], two: type[E2], /, **options: Unpack[EndOptions[E1 | E2]]) -> MarksMethod[E1 | E2]: ...
@overload
def ends(
    one: Followed, two: Followed, three: Followed, /, *more: Followed, **options: Unpack[EndOptions[Any]]
) -> Callable[[Method], Method]: ...
@overload
def ends(method: Method, /) -> Method: ...
def ends(
    *followed: Any,
    key: Callable[[Any], str | None] | None = None,
    when: Callable[[Any], bool] | None = None,
    join: bool = False,
) -> Any:
    """Mark a method of a process manager as `handles` does. After the handler the process of the ``key`` has ended, if
    ``when`` returns True for the state; without ``when`` always. ``join`` is that of `handles`. Raises
    `DefinitionError`.

    For example::

        class Greetings(ProcessManager):
            name = "bank.first_greetings"
            state = Greeting  # a dataclass

            @starts
            def opened(self, greeting: Greeting, event: AccountOpened) -> None: ...

            @ends(when=lambda greeting: greeting.deposits == 3)
            def deposited(self, greeting: Greeting, event: Deposited) -> None:
                greeting.deposits += 1
    """
    return _marking("ends", followed, False, HandlerMark(key, ends=True, when=when, join=join))


def _marking(decorator: str, followed: tuple[Any, ...], creates: bool, marked_as: HandlerMark | None) -> Any:
    """Return the marked method if ``followed`` is one, else the decorator of a method."""
    given = () if is_bare(followed) else followed
    check_followed(decorator, given)
    if marked_as is not None:
        checked_mark(decorator, marked_as)

    def mark(method: Method) -> Method:
        crashes = _crashes_beside(decorator, method)
        marked = handled_classes(decorator, method, given, DomainEvent | DomainException, last=True)
        marked = [cls for cls in marked if cls not in crashes]
        check_followed(decorator, marked)
        if marked_as is not None and marked_as.join and (crashes or len(marked) < 2):
            raise DefinitionError(f"{decorator}(join=True) marks {method.__qualname__}; give it two classes of events")
        method._enode_handles = (*marked, *crashes)  # type: ignore[attr-defined]
        method._enode_creates = creates  # type: ignore[attr-defined]
        method._enode_mark = marked_as  # type: ignore[attr-defined]
        return method

    return mark(followed[0]) if is_bare(followed) else mark


def checked_mark(decorator: str, mark: HandlerMark) -> HandlerMark:
    """Return the mark. Raises `DefinitionError` if it has a key or a condition that cannot be called."""
    for name, function in (("key", mark.key), ("when", mark.when)):
        if not (function is None or callable(function)):
            raise DefinitionError(f"{decorator}() got {name}={function!r}; give it a function")
    return mark


def _crashes_beside(decorator: str, method: Callable[..., Any]) -> tuple[type[CommandCrashed], ...]:
    """Return the class of crashes if a plain `handles_crash` has marked the method, else nothing. Raises
    `DefinitionError` for any other mark."""
    if decorator != "starts" and getattr(method, "_enode_handles", ()) == (CommandCrashed,):
        if method._enode_mark is None:  # type: ignore[attr-defined]
            return (CommandCrashed,)
        raise DefinitionError(
            f"{method.__qualname__} is marked with @{decorator} above @handles_crash, which has a key or ends the "
            f"process; say so in @{decorator}"
        )
    check_markable(decorator, method)
    return ()


def check_markable(decorator: str, method: Callable[..., Any]) -> None:
    """Raise `DefinitionError` for a function that no class can have as a method, for a method that has a mark, which a
    second one would replace, and for one that replaces a marked method."""
    check_marked_once(decorator, method)
    if isinstance(method, FunctionType) and not is_method(method) and _takes_one(method):
        raise DefinitionError(
            f"{decorator}() got the function {method.__qualname__}(), which no subscriber calls; mark a method of a "
            "subscriber, or write @event_handler"
        )
    if hasattr(method, "_enode_handles"):
        raise DefinitionError(
            f"{decorator}() got {getattr(method, '__qualname__', repr(method))}, which is marked already; a method "
            "takes one of @handles, @starts and @ends, and below it @handles_crash"
        )


def _takes_one(function: FunctionType) -> bool:
    """Return True for a function that takes an event and nothing else, not even ``self``."""
    kinds = [parameter.kind for parameter in signature(function).parameters.values()]
    return kinds in ([Parameter.POSITIONAL_ONLY], [Parameter.POSITIONAL_OR_KEYWORD])


def check_followed(decorator: str, followed: Iterable[object]) -> None:
    """Raise `DefinitionError` for a class that cannot be followed."""
    for cls in followed:
        if not (isinstance(cls, type) and issubclass(cls, DomainEvent | DomainException)):
            raise DefinitionError(f"{decorator}() takes classes of events or domain exceptions, got {cls!r}")
        if issubclass(cls, CommandCrashed):
            raise DefinitionError(
                f"{decorator}() got {cls.__qualname__}, which only comes to the process manager that has sent the "
                f"command; write @handles_crash(SomeCommand) there, below @{decorator} if the method has both"
            )
