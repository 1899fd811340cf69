"""Classes that were renamed since something was sent or stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    DomainEvent,
    DomainException,
    ProcessManager,
    Unique,
    applies,
    command_handler,
    handles,
)
from enode_django.checks.definitions import check_definitions
from enode_django.domain.declarations import aliases_of
from enode_django.domain.handlers import command_handlers
from enode_django.eventing.process_managers import with_derived_ids
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import event_handlers_of, follows, refusal_handlers_of
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import AggregateTypeMismatch, DefinitionError, UnknownMessageType
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.unique_keys import names_of as unique_names_of
from enode_django.serialization.codec import (
    StoredEvent,
    StoredRefusal,
    decode_command,
    decode_refusal,
    restore_command,
    restore_event,
)
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import TypeRegistry, types
from enode_django.serialization.schema_history import CurrentSchema, RecordedSchema, compare, record
from enode_django.testing.inline import InlineCommandBus

KINDS = (Command, DomainEvent, DomainException, AggregateRoot)


class Planted(DomainEvent):
    type_name = "aliases.Planted"
    aliases = ("aliases.PutInTheGround", "aliases.Sown")
    height: int


class TooDry(DomainException):
    type_name = "aliases.TooDry"
    aliases = ("aliases.NoWater",)


class Plant(Command):
    type_name = "aliases.Plant"
    aliases = ("aliases.PutInTheGround",)
    height: int


class Tree(AggregateRoot):
    type_name = "aliases.Tree"
    aliases = ("aliases.Shrub",)
    height: int = 0

    @applies(Planted)
    def _planted(self, event: Planted) -> None:
        self.height += event.height


class Bush(AggregateRoot):
    type_name = "aliases.Bush"

    @applies(Planted)
    def _planted(self, event: Planted) -> None: ...


class Gardener(ProcessManager):
    name = "aliases.Gardener"
    abstract = True

    @handles(Planted, TooDry)
    def seen(self, event: Planted | TooDry) -> Iterator[Command]:
        yield Plant(aggregate_root_id="next", height=1)


def row(version: int, kind: str, event: str, height: int) -> StreamRecord:
    events = b"\x01" + pack(([(event, 1, {"height": height})], None))
    return StreamRecord("t", version, f"c{version}", kind, "aliases.Plant", datetime.now(UTC), events, b"")


@pytest.mark.parametrize("kind", KINDS)
def test_class_is_found_by_its_name_and_by_every_alias(undeclared: None, kind: type) -> None:
    body = {"type_name": "aliases.New", "aliases": ("aliases.Old", "aliases.Older"), "__module__": __name__}
    renamed = type("Renamed", (kind,), body)
    heir = type("Heir", (renamed,), {"type_name": "aliases.Heir", "__module__": __name__})
    registry = TypeRegistry()
    for name in ("aliases.New", "aliases.Old", "aliases.Older"):
        assert registry.class_of(kind, name) is renamed
    assert registry.name_of(renamed) == "aliases.New"
    assert registry.first_name_of(renamed) == "aliases.Old"
    assert (registry.class_of(kind, "aliases.Heir"), registry.first_name_of(heir)) == (heir, "aliases.Heir")


def test_stored_and_sent_under_an_old_name_is_read() -> None:
    for name in ("aliases.Planted", "aliases.PutInTheGround", "aliases.Sown"):
        assert restore_event(StoredEvent(name, 1, {"height": 2})) == Planted(height=2)
    assert isinstance(decode_refusal(StoredRefusal("aliases.NoWater", 1, "dry", {})), TooDry)
    sent = pack((1, "aliases.PutInTheGround", "c", "t", {"height": 2}, b"", ""))
    assert restore_command(decode_command(sent)) == Plant(id="c", aggregate_root_id="t", height=2)


@pytest.mark.parametrize("kind", KINDS)
def test_alias_that_is_the_name_or_alias_of_another_class_fails_the_check_of_names(
    undeclared: None, kind: type
) -> None:
    def declare(name: str, *aliases: str) -> type:
        return type(name, (kind,), {"type_name": f"clash.{name}", "aliases": aliases, "__module__": __name__})

    one, other, third = declare("One", "clash.Old"), declare("Other", "clash.Old"), declare("Third", "clash.One")
    found = {name: {a, b} for name, a, b in types.duplicates() if name.startswith("clash.")}
    assert found == {"clash.Old": {one, other}, "clash.One": {one, third}}
    messages = [error.msg for error in check_definitions(None) if error.id == "enode_django.E011"]
    assert sum("'clash.Old'" in message or "'clash.One'" in message for message in messages) == 2


def test_alias_may_be_the_name_of_a_class_of_another_kind() -> None:
    assert types.class_of(DomainEvent, "aliases.PutInTheGround") is Planted
    assert types.class_of(Command, "aliases.PutInTheGround") is Plant
    assert not {name for name, _, _ in types.duplicates() if name.startswith("aliases.")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aliases", ["aliases.Old", ("",), (1,), None, {"aliases.Old"}])
def test_aliases_that_are_no_tuple_of_names_are_refused(kind: type, aliases: Any) -> None:
    with pytest.raises(DefinitionError, match=r'aliases = \("label.OldName",\)'):
        type("Bad", (kind,), {"type_name": "aliases.Bad", "aliases": aliases, "__module__": __name__})


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_can_be_called_aliases(kind: type) -> None:
    with pytest.raises(DefinitionError, match="'aliases'"):
        type("Bad", (kind,), {"__annotations__": {"aliases": str}, "__module__": __name__})


def test_aggregate_with_rows_of_its_old_and_its_new_name_is_loaded() -> None:
    store = MemoryEventStore()
    store.append(
        [
            row(1, "aliases.Shrub", "aliases.Sown", 1),
            row(2, "aliases.Tree", "aliases.Planted", 2),
            row(3, "aliases.Shrub", "aliases.PutInTheGround", 4),  # stored by a worker of the old code meanwhile
        ]
    )
    tree = AggregateLoader(store).load("t")
    assert isinstance(tree, Tree)
    assert (tree.version, tree.height) == (3, 7)


@pytest.mark.parametrize(
    ("second", "error"), [("aliases.Bush", AggregateTypeMismatch), ("aliases.Unheard", UnknownMessageType)]
)
def test_aggregate_with_a_row_of_another_type_is_not_loaded(second: str, error: type[Exception]) -> None:
    store = MemoryEventStore()
    store.append([row(1, "aliases.Shrub", "aliases.Sown", 1), row(2, second, "aliases.Planted", 2)])
    with pytest.raises(error, match=second):
        AggregateLoader(store).load("t")


def test_renamed_command_changes_a_renamed_aggregate() -> None:
    @command_handler(Plant)
    def plant(command: Plant, context: CommandContext) -> None:
        context.get(Tree).apply(Planted(height=command.height))

    store = MemoryEventStore()
    store.append([row(1, "aliases.Shrub", "aliases.Sown", 1)])
    sent = restore_command(decode_command(pack((1, "aliases.PutInTheGround", "c", "t", {"height": 2}, b"", ""))))
    try:
        result = InlineCommandBus(store).execute(sent, 0)
    finally:
        command_handlers.remove(Plant, plant)
    assert (result.status, result.version) == (CommandStatus.SUCCESS, 2)
    stored = store.load("t")
    assert [record.aggregate_root_type for record in stored] == ["aliases.Shrub", "aliases.Tree"]


def test_subscribers_follow_what_is_stored_under_old_names() -> None:
    gardener = Gardener()
    for name in ("aliases.Planted", "aliases.PutInTheGround", "aliases.Sown"):
        assert event_handlers_of(gardener, name) == (gardener.seen,)
    assert refusal_handlers_of(gardener, "aliases.NoWater") == (gardener.seen,)
    assert follows(gardener, "aliases.Shrub")
    assert follows(gardener, "aliases.Tree")
    with subscribers.only(gardener):
        assert list(subscribers.following(["aliases.Sown"])) == ["aliases.Gardener"]


def test_renaming_a_command_changes_no_derived_id(undeclared: None) -> None:
    def derived(name: str, *aliases: str) -> str:
        body = {"type_name": name, "aliases": aliases, "__module__": __name__}
        command = type("Water", (Command,), body)(aggregate_root_id="t")
        (copied,) = with_derived_ids([command], cause="t/1/0", subscriber="aliases.Gardener")
        return copied.id

    once = derived("aliases.Water")
    assert derived("aliases.Pour", "aliases.Water") == once
    assert derived("aliases.Sprinkle", "aliases.Water", "aliases.Pour") == once
    assert derived("aliases.Sprinkle") != once


def in_three_releases(kind: type, **body: Any) -> list[type]:
    """Return a class as it is before a rename in two deploys (docs/howto/evolving-events.md), between and after it."""
    names: list[dict[str, Any]] = [
        {"type_name": "aliases.Water"},
        {"type_name": "aliases.Water", "aliases": ("aliases.Water", "aliases.Pour")},
        {"type_name": "aliases.Pour", "aliases": ("aliases.Water",)},
    ]
    return [type("Water", (kind,), {**body, **each, "__module__": __name__}) for each in names]


@pytest.mark.parametrize("kind", KINDS)
def test_both_names_are_read_between_two_deploys_and_the_oldest_stays(undeclared: None, kind: type) -> None:
    before, between, after = in_three_releases(kind)
    assert {types.first_name_of(cls) for cls in (before, between, after)} == {"aliases.Water"}
    assert [types.name_of(cls) for cls in (before, between, after)] == [
        "aliases.Water",
        "aliases.Water",
        "aliases.Pour",
    ]
    assert {*aliases_of(between)} == {"aliases.Water", "aliases.Pour"}
    assert not {name for name, _, _ in types.duplicates() if name.startswith("aliases.")}


def test_renaming_a_command_in_two_deploys_changes_no_derived_id(undeclared: None) -> None:
    commands = [cls(aggregate_root_id="t") for cls in in_three_releases(Command)]
    copies = [with_derived_ids([each], cause="t/1/0", subscriber="aliases.Gardener") for each in commands]
    assert len({copied.id for (copied,) in copies}) == 1


def test_renaming_an_aggregate_in_two_deploys_keeps_its_unique_values(undeclared: None) -> None:
    body = {"__annotations__": {"email": str}, "email": "", "unique": Unique("email")}
    names = [unique_names_of(cls) for cls in in_three_releases(AggregateRoot, **body)]
    assert names == [["aliases.Water:email"]] * 3


@pytest.mark.parametrize("kind", [DomainEvent, DomainException])
def test_renaming_in_two_deploys_has_no_problem_of_schemas(undeclared: None, kind: type) -> None:
    before, between, after = (
        CurrentSchema(name=types.name_of(cls), app="aliases", schema_version=1, fields={}, aliases=aliases_of(cls))
        for cls in in_three_releases(kind)
    )
    recorded: dict[str, RecordedSchema] = {}
    for current in (before, between, after):
        assert all(problem.is_news for problem in compare(recorded, [current]))
        recorded = dict(record(recorded, [current]))
        assert not list(compare(recorded, [current]))


def test_problem_of_a_class_whose_name_is_among_its_aliases_is_told_once() -> None:
    current = CurrentSchema(
        name="aliases.Water",
        app="a",
        schema_version=1,
        fields={"litres": "int"},
        aliases=("aliases.Water", "aliases.Pour"),
    )
    recorded = RecordedSchema(name="aliases.Water", app="a", versions={1: {}}, aliases=current.aliases)
    (problem,) = compare({recorded.name: recorded}, [current])
    assert "litres is new" in problem.text


OLD_NAMES: list[Callable[[], object]] = [
    lambda: types.class_of(DomainEvent, "aliases.Shrub"),
    lambda: types.class_of(Command, "aliases.Sown"),
]


@pytest.mark.parametrize("look_up", OLD_NAMES)
def test_alias_counts_for_its_kind_only(look_up: Callable[[], object]) -> None:
    with pytest.raises(UnknownMessageType):
        look_up()
