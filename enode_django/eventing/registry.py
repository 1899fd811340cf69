"""The subscribers of this process, by name and by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter

from enode_django.eventing.event_handlers import handler_groups
from enode_django.eventing.snapshot_subscriber import snapshot_subscriber
from enode_django.eventing.subscribers import (
    Subscriber,
    checkpoint_database,
    declared_subscribers,
    event_handlers_of,
    key_of,
)
from enode_django.exceptions import TypeNameError, UnknownMessageType, UnknownSubscriber


class SubscriberRegistry:
    """The subscribers of this process. They are made when first asked for, when all apps are loaded."""

    def __init__(self) -> None:
        self._made: dict[type[Subscriber], Subscriber] = {}
        self._only: Sequence[Subscriber] | None = None

    def running(self, *ours: Subscriber) -> Sequence[Subscriber]:
        """Return the subscribers that event workers run: the project's, and those in ``ours``."""
        return self.all() if self._only is not None else [*self.all(), *ours]

    def all(self) -> Sequence[Subscriber]:
        """Return the project's subscribers by name. A class without a name, because it is outside the installed apps,
        is never run: a check reports it."""
        if self._only is not None:
            return self._only
        found: list[Subscriber] = list(handler_groups())
        for cls in declared_subscribers():
            with suppress(TypeNameError):
                found.append(self.instance(cls))
        return sorted(found, key=attrgetter("name"))

    def instance(self, cls: type[Subscriber]) -> Subscriber:
        """Return the one instance of the class in this process."""
        subscriber = self._made.get(cls)
        if subscriber is None:
            subscriber = self._made[cls] = cls()
        return subscriber

    def get(self, name: str) -> Subscriber:
        """Return the subscriber that has this name or had it before. Raises `UnknownSubscriber`."""
        for subscriber in self.known():
            if name == subscriber.name or name in subscriber.aliases:
                return subscriber
        names = ", ".join(subscriber.name for subscriber in self.all()) or "none"
        raise UnknownSubscriber(f"no subscriber is named {name!r}; there are {names}")

    def known(self) -> Sequence[Subscriber]:
        """Return the project's subscribers and this package's own, whether or not event workers run that."""
        return [*self.all(), snapshot_subscriber]

    def name_of(self, key: str) -> str:
        """Return the name of the subscriber that has this key, or the key if no subscriber has it."""
        return next((one.name for one in self.known() if key_of(one) == key), key)

    def following(self, event_types: Iterable[str]) -> Mapping[str, str]:
        """Return the names, by key, of the subscribers that handle one of these stored names of events."""
        wanted = list(event_types)
        return {key_of(one): one.name for one in self.all() if any(_is_followed(one, name) for name in wanted)}

    @contextmanager
    def only(self, *chosen: type[Subscriber] | Subscriber) -> Iterator[Sequence[Subscriber]]:
        """Limit the subscribers to ``chosen`` inside the block: for tests, and to run some of them only."""
        before = self._only
        made = [one if isinstance(one, Subscriber) else self.instance(one) for one in chosen]
        self._only = sorted(made, key=attrgetter("name"))
        try:
            yield self._only
        finally:
            self._only = before


def _is_followed(subscriber: Subscriber, type_name: str) -> bool:
    try:
        return bool(event_handlers_of(subscriber, type_name))
    except UnknownMessageType:
        return False


subscribers = SubscriberRegistry()
"""The subscribers of this process, by name.

For example::

    assert subscribers.get("bank.transfers") in subscribers.all()
"""


def subscriber_databases() -> list[str]:
    """Return the databases of subscribers, and the database of checkpoints without rows, which may hold checkpoints of
    subscribers that this code no longer has."""
    return sorted({checkpoint_database(), *(one.database for one in subscribers.all())})
