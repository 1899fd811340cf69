"""`handles` marks the methods of a subscriber that handle events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

from enode_django.domain.annotations import handled_classes, is_bare
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import DefinitionError
from enode_django.serialization.crashes import CommandCrashed

Followed = type[DomainEvent] | type[DomainException]
EventKey = Callable[[Any], object]
"""Returns the key of the row that an event changes, or None if it changes none."""
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


@overload
def handles(one: type[E1], /, *, creates: bool = ..., key: EventKey | None = ...) -> MarksMethod[E1]: ...
@overload
def handles(
    one: type[E1], two: type[E2], /, *, creates: bool = ..., key: EventKey | None = ...
) -> MarksMethod[E1 | E2]: ...
@overload
def handles(
    one: type[E1], two: type[E2], three: type[E3], /, *, creates: bool = ..., key: EventKey | None = ...
) -> MarksMethod[E1 | E2 | E3]: ...
@overload
def handles(
    one: type[E1], two: type[E2], three: type[E3], four: type[E4], /, *, creates: bool = ...
) -> MarksMethod[E1 | E2 | E3 | E4]: ...
@overload
def handles(
    one: type[E1], two: type[E2], three: type[E3], four: type[E4], five: type[E5], /, *, creates: bool = ...
) -> MarksMethod[E1 | E2 | E3 | E4 | E5]: ...
@overload
def handles(*followed: Followed, creates: bool = ..., key: EventKey | None = ...) -> Callable[[Method], Method]: ...
@overload
def handles(method: Method, /) -> Method: ...
def handles(*followed: Any, creates: bool = False, key: EventKey | None = None) -> Any:
    """Mark a method of a subscriber as the handler of these classes of events and their subclasses; without a class, of
    those that the annotation of its event names.

    Process managers and event handlers may also handle domain exceptions: refusals that were stored. ``creates`` is for
    a `ModelProjection` or `MultiProjection`: once a handler says so, the others are called only for a row that exists.
    ``key`` is for a `MultiProjection`: the key of these events, instead of that of the class. Raises
    `DefinitionError`.

    For example::

        class Welcome(ProcessManager):
            name = "bank.welcome"

            @handles
            def opened(self, event: AccountOpened) -> Iterator[Command]:
                yield Deposit(event.aggregate_root_id, amount=Decimal(10))
    """

    def mark(method: Method) -> Method:
        marked = handled_classes("handles", method, given, DomainEvent | DomainException, last=True)
        check_followed("handles", marked)
        method._enode_handles = marked  # type: ignore[attr-defined]
        method._enode_creates = creates  # type: ignore[attr-defined]
        method._enode_key = key  # type: ignore[attr-defined]
        return method

    given = () if is_bare(followed) else followed
    check_followed("handles", given)
    return mark(followed[0]) if is_bare(followed) else mark


def check_followed(decorator: str, followed: Iterable[object]) -> None:
    """Raise `DefinitionError` for a class that cannot be followed."""
    for cls in followed:
        if not (isinstance(cls, type) and issubclass(cls, DomainEvent | DomainException)):
            raise DefinitionError(f"{decorator}() takes classes of events or domain exceptions, got {cls!r}")
        if issubclass(cls, CommandCrashed):
            raise DefinitionError(
                f"{decorator}() got {cls.__qualname__}, which only comes to the process manager that has sent the "
                "command; write @handles_crash(SomeCommand) there"
            )
