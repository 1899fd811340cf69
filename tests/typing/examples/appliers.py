"""Methods that change an aggregate's state say by which events in their annotation, in @applies, or in both."""

from __future__ import annotations

from enode_django import AggregateRoot, DomainEvent, applies


class Opened(DomainEvent):
    owner: str


class Renamed(DomainEvent):
    owner: str


class Closed(DomainEvent):
    pass


class Reopened(DomainEvent):
    pass


class Frozen(DomainEvent):
    pass


class Thawed(DomainEvent):
    pass


class Account(AggregateRoot):
    owner: str = ""

    @applies
    def _opened(self, event: Opened) -> None:
        self.owner = event.owner

    @applies
    def _renamed(self, event: Renamed | Opened) -> None:
        self.owner = event.owner

    @applies(Closed)
    def _closed(self, event: Closed) -> None: ...

    @applies(Closed, Reopened)
    def _any(self, event: DomainEvent) -> None: ...

    @applies(Closed, Reopened, Frozen, Thawed, Opened)
    def _five(self, event: Closed | Reopened | Frozen | Thawed | Opened) -> None: ...

    @applies(Closed, Reopened, Frozen, Thawed, Opened, Renamed)
    def _six(self, event: DomainEvent) -> None: ...

    def call(self) -> None:
        self._closed(Closed())
        self._closed(Opened(owner=""))  # error


class Broken(AggregateRoot):
    @applies  # error
    def _number(self, event: int) -> None: ...

    @applies(Opened)  # error
    def _closed(self, event: Closed) -> None: ...

    @applies(Closed, Reopened)  # error
    def _one_of_two(self, event: Closed) -> None: ...

    @applies(Closed, Reopened, Frozen, Thawed, Opened)  # error
    def _four_of_five(self, event: Closed | Reopened | Frozen | Thawed) -> None: ...

    @applies  # error
    def _nothing(self) -> None: ...
