"""Find the causes of a command and the commands that follow from it: command → events → commands …

A stored command names its cause: an event, a refusal or a command. Upwards, each cause is found by an index, since the
id of an event is its place in the store. Downwards there is no index. Following commands are found in three ways:

* A stored stream has the commands that its handler has sent.
* The ids of a process manager's commands derive from the event, the manager's name, the command's type and aggregate.
  Ids are computed for every type and every text in the event that may be an aggregate root id, and looked up.
* The next streams stored in each shard are searched for the correlation id.

A command sent later than these, to an aggregate that the event does not name, is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from enode_django.bus.derived_ids import derived_id
from enode_django.domain.messages import Command
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import event_handlers_of, key_of, refusal_handlers_of
from enode_django.eventstore.base import CommandKey, EventStore
from enode_django.eventstore.limits import holds
from enode_django.exceptions import AggregateNotFound, MalformedMessage, UnknownMessageType, shown
from enode_django.history import tables
from enode_django.history.steps import Happened, Step, ids_within, keys_of_refusal, place_of_event
from enode_django.runtime import make_store
from enode_django.serialization.codec import decode_metadata
from enode_django.serialization.registry import types


class Limits(NamedTuple):
    """The limits of a search: the number of ancestors, the depth and number of descendants, and the rows read."""

    ancestors: int = 20
    depth: int = 12
    steps: int = 150
    """Descendants."""
    derived: int = 20_000
    """Ids that are computed and looked up."""
    window: int = 10_000
    """Later streams that are searched in each shard."""


DEFAULT = Limits()
IDS_IN_AN_EVENT = 20
ALIKE = 2
"""The most commands of one class for one aggregate that are looked up for an event: more are rare, and each costs a
look-up."""


class Causation(NamedTuple):
    """The causation of a command.

    ``ancestors`` begin with the oldest; ``descendants`` come after their causes, which ``metadata.causation_id`` names.
    ``unknown_cause`` is the cause of the oldest ancestor if the store does not have it, or a limit was reached; empty
    if there is none. ``cut`` has a text for each limit that has left something out. ``searched`` says how far later
    streams were searched, if not to the end.
    """

    focus: Step
    ancestors: Sequence[Step]
    unknown_cause: str
    descendants: Sequence[Step]
    cut: Sequence[str]
    searched: str = ""


def causation(
    aggregate_root_id: str, version: int | None = None, *, command_id: str = "", limits: Limits = DEFAULT
) -> Causation:
    """Return the causation of the command that made a version of an aggregate, or that has ``command_id``, which may be
    refused. Raises `AggregateNotFound` if there is no such row.

    For example::

        execute_command(OpenAccount("ada", owner="Ada", id="open-ada"))
        found = causation("ada", 1)
        assert (found.focus.command_id, found.ancestors) == ("open-ada", [])
    """
    store = make_store()
    focus = _find(store, aggregate_root_id, version, command_id)
    cut: list[str] = []
    ancestors, unknown = _ancestors(store, focus, limits, cut)
    descent = _Descent(store, focus, limits, cut)
    descendants = descent.run()
    return Causation(focus, ancestors, unknown, descendants, cut, descent.searched)


def _find(store: EventStore, id: str, version: int | None, command_id: str) -> Step:
    if not holds(id):
        raise AggregateNotFound(f"nothing is stored of an aggregate {shown(id)}")
    if version is not None:
        step = _at(store, id, version)
    else:
        step = next((Step.of(row) for row in store.find([(command_id, id)]).values()), None)
    if step is None:
        wanted = f"version {version!r}" if version is not None else f"command {shown(command_id)}"
        raise AggregateNotFound(f"{id!r} has no {wanted}")
    return step


def _at(store: EventStore, id: str, version: int) -> Step | None:
    if type(version) is not int or not 1 <= version < 2**63:
        return None
    found = store.load_ranges({id: (version - 1, version)})
    return next((Step.of(record) for records in found.values() for record in records), None)


# -- upwards ------------------------------------------------------------------------------------------------------


def _ancestors(store: EventStore, focus: Step, limits: Limits, cut: list[str]) -> tuple[list[Step], str]:
    ancestors: list[Step] = []
    seen = {focus.key}
    cause = focus.metadata.causation_id
    while cause:
        step = _named(store, cause)
        if step is None or step.key in seen:
            break
        if len(ancestors) == limits.ancestors:
            cut.append(f"more than {limits.ancestors} commands led to this one; go on from the first")
            break
        seen.add(step.key)
        ancestors.insert(0, step)
        cause = step.metadata.causation_id
    return ancestors, cause or ""


def _named(store: EventStore, cause: str) -> Step | None:
    """Find a command by the id of one of its events, of its refusal, or by its own id."""
    place = place_of_event(cause)
    if place is not None and (step := _at(store, *place)) is not None:
        return step
    for record in store.find(keys_of_refusal(cause)).values():
        return Step.of(record)
    for alias in tables.aliases():
        for row in tables.rows_of_command(alias, cause):
            return Step.of(tables.record_of(row))
    return None


# -- downwards ----------------------------------------------------------------------------------------------------


class _Descent:
    def __init__(self, store: EventStore, focus: Step, limits: Limits, cut: list[str]) -> None:
        self._store = store
        self._focus = focus
        self._limits = limits
        self._cut = cut
        self._computed = 0
        self.searched = ""
        self._found: dict[CommandKey, Step] = {focus.key: focus}

    def run(self) -> list[Step]:
        level = [self._focus]
        for _ in range(self._limits.depth):
            level = self._kept(self._children(level))
        if level and self._children(level):
            self._say(f"no more than {self._limits.depth} commands deep")
        return list(self._found.values())[1:]

    def _kept(self, steps: list[Step]) -> list[Step]:
        room = self._limits.steps + 1 - len(self._found)
        if len(steps) > room:
            self._say(f"no more than {self._limits.steps} commands")
        self._found.update((step.key, step) for step in steps[:room])
        return steps[:room]

    def _children(self, level: Sequence[Step]) -> list[Step]:
        causes = {cause for step in level for cause in step.causes}
        keys = dict.fromkeys(key for cause in causes for key in self._seen_next.get(cause, ()))
        keys.update(dict.fromkeys(key for step in level for key in step.sent))
        keys.update(dict.fromkeys(self._derived(level)))
        found = self._store.find(key for key in keys if key not in self._found)
        steps = sorted(map(Step.of, found.values()), key=lambda step: step.created_at)
        return [step for step in steps if step.metadata.causation_id in causes]

    @cached_property
    def _seen_next(self) -> dict[str, list[CommandKey]]:
        """The commands with the same correlation id among the streams stored next, by cause."""
        found: dict[str, list[CommandKey]] = {}
        text = self._focus.correlation_id
        own = self._store.place_of(self._focus.aggregate_root_id)
        for place, alias in enumerate(tables.aliases()):
            after = self._own_sequence(alias) if place == own else tables.sequence_at(alias, self._focus.created_at) - 1
            until = after + self._limits.window
            if tables.last_sequence(alias) > until:
                self.searched = (
                    f"the next {self._limits.window:,} streams of each shard were searched for what follows, and later "
                    "ones only for aggregates that an event names"
                )
            for row in tables.naming(alias, text, after, until):
                cause = _cause_of(row)
                if cause:
                    found.setdefault(cause, []).append((row.command_id, row.aggregate_root_id))
        return found

    def _own_sequence(self, alias: str) -> int:
        command_id, root = self._focus.key
        row = tables.streams(alias).filter(command_id=command_id, aggregate_root_id=root).values_list("sequence")
        return next((sequence for (sequence,) in row), 0)

    def _derived(self, level: Sequence[Step]) -> Iterator[CommandKey]:
        for step in level:
            for happened in step.happened:
                for key in _derived_keys(step, happened):
                    if self._computed >= self._limits.derived:
                        self._say(f"no more than {self._limits.derived:,} ids of commands were computed")
                        return
                    self._computed += 1
                    yield key

    def _say(self, text: str) -> None:
        if text not in self._cut:
            self._cut.append(text)


def _cause_of(row: tables.Found) -> str | None:
    try:
        return decode_metadata(row.metadata).causation_id
    except MalformedMessage:
        return None


def _derived_keys(step: Step, happened: Happened) -> Iterator[CommandKey]:
    targets = dict.fromkeys([step.aggregate_root_id, *ids_within(happened.fields, most=IDS_IN_AN_EVENT)])
    # Derived ids have the oldest names.
    names = [types.first_name_of(cls) for cls in types.names() if issubclass(cls, Command)]
    for manager in _managers_of(happened):
        for target in targets:
            for name in names:
                for number in range(1, ALIKE + 1):
                    yield derived_id(happened.id, key_of(manager), name, target, number), target


def _managers_of(happened: Happened) -> Iterator[ProcessManager]:
    """Yield the process managers that handle an event or a refusal; all of them if its class is missing."""
    for one in subscribers.all():
        if isinstance(one, ProcessManager):
            handlers_of = refusal_handlers_of if happened.is_refusal else event_handlers_of
            try:
                if handlers_of(one, happened.type_name):
                    yield one
            except UnknownMessageType:
                yield one
