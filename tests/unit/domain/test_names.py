"""Names that applications use for themselves either work, or are refused when the class is defined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic

import pytest
from django.db import models
from django.test.utils import isolate_apps

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    DomainEvent,
    DomainException,
    ModelProjection,
    ProcessManager,
    Projection,
    applies,
    handles,
    try_command,
)
from enode_django.domain.handlers import command_handlers
from enode_django.domain.names import PREFIX, names_of
from enode_django.eventing import subscribers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError
from enode_django.models import ReadModel
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.state import differences, read_snapshot, snapshot_of
from enode_django.testing import given, inline
from sample_project.bank.models import AccountSummary
from tests.docs.pages import DOCS, rows_by_code
from tests.unit.domain.words import PRIVATE, class_of, fields_of, methods_of, never

MESSAGES: tuple[type, ...] = (Command, DomainEvent, DomainException)
SUBSCRIBERS: tuple[type, ...] = (ModelProjection, Projection, ProcessManager)
BASES = (AggregateRoot, *MESSAGES, *SUBSCRIBERS)
EVERY_BASE = pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)


@pytest.fixture(autouse=True)
def nothing_stays_declared(undeclared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "_declared", [])


# -- reserved names --------------------------------------------------------------------------------------------------


@EVERY_BASE
def test_every_attribute_of_a_base_class_is_in_the_reference(base: type) -> None:
    page = DOCS / "reference" / ("subscribers.md" if base in SUBSCRIBERS else "domain.md")
    (row,) = (row for row in rows_by_code(page)[base.__name__] if len(row) == 4)
    names = names_of(base)
    documented = [frozenset(re.findall(r"`(\w+)`", cell)) for cell in row[1:]]
    assert documented == [names.taken, names.settings - names.hooks, names.hooks]
    cls = class_of(base, {"name": "words.any"})
    made = cls(aggregate_root_id="a") if base is Command else cls("a") if base is AggregateRoot else cls()
    attributes = {*dir(base), *vars(made)} - set(dir(Generic))
    assert {name for name in attributes if not re.match(f"__|{PREFIX}", name)} <= frozenset().union(*documented)


@pytest.mark.parametrize("base", [AggregateRoot, *MESSAGES], ids=lambda base: base.__name__)
def test_exactly_the_names_in_the_reference_cannot_be_fields(base: type) -> None:
    names = names_of(base)
    _, refused = fields_of(base)
    assert refused.keys() == (names.taken | names.settings | names.hooks)
    assert [text for text in refused.values() if "\n" in text or "choose another name" not in text] == []


@EVERY_BASE
def test_exactly_the_names_in_the_reference_cannot_be_methods(base: type) -> None:
    names = names_of(base)
    _, refused = methods_of(base)
    assert refused.keys() == (names.taken | names.settings | names.hooks) - {"snapshot_every"}
    assert [text for text in refused.values() if "\n" in text or "choose another name" not in text] == []


@EVERY_BASE
def test_a_name_of_ours_in_a_mixin_is_refused_where_it_would_count(base: type) -> None:
    fields = getattr(base, "__dataclass_fields__", {})
    for word in names_of(base).taken:
        mixin = type("Mixin", (), {word: property(lambda self: None)})
        with pytest.raises(DefinitionError, match=f"defines '{word}' in its base Mixin, which every"):
            type("Mixed", (mixin, base), {"type_name": "words.Mixed"})
        if word not in fields:
            type("After", (base, mixin), {"type_name": "words.After"})  # there it hides nothing
    with pytest.raises(DefinitionError, match="begin with '_enode_' are the framework's"):
        class_of(base, {"_enode_anything": 1})


def test_a_setting_is_refused_as_a_field_and_taken_with_an_annotation_that_makes_none() -> None:
    with pytest.raises(DefinitionError, match="declares the field 'type_name', but that is a setting"):
        type("Typed", (AggregateRoot,), {"__annotations__": {"type_name": "str"}, "type_name": "words.Typed"})
    own = {"__annotations__": {"schema_version": "ClassVar[int]"}, "schema_version": 2, "type_name": "words.Second"}
    assert type("Second", (DomainEvent,), own).schema_version == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"snapshot": never, "restore": never},
            r"Words.snapshot cannot be the hook snapshot\(\) of snapshots: never.*; choose another",
        ),
        (
            {"snapshot": 1, "restore": 2},
            r"Words.snapshot cannot be the hook snapshot\(\) of snapshots: it is 1; choose another",
        ),
    ],
)
def test_what_cannot_be_a_hook_of_snapshots_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        class_of(AggregateRoot, body)


def test_a_field_and_an_applier_cannot_have_one_name() -> None:
    happened = class_of(DomainEvent, {})
    with pytest.raises(DefinitionError, match="has a field and an applier 'opened'; choose another name for one"):
        class_of(AggregateRoot, {"opened": applies(happened)(lambda self, event: None)}, ["opened"])


@pytest.mark.parametrize(
    "version", [models.CharField(max_length=10), models.BigIntegerField(), models.BigIntegerField(default=0)]
)
def test_a_read_model_with_a_version_of_its_own_is_refused(version: models.Field[Any, Any]) -> None:
    with isolate_apps("sample_project.bank"):
        field = version

        class Contract(ReadModel):
            version = field  # type: ignore[assignment]

            class Meta:
                app_label = "bank"

    happened = class_of(DomainEvent, {})
    with pytest.raises(DefinitionError, match=r"has the model .*Contract, whose own version .*; choose another name"):
        class_of(ModelProjection, {"model": Contract, "changed": handles(happened)(lambda self, row, event: None)})


# -- what works ------------------------------------------------------------------------------------------------------


class Used:
    """Classes that use every word: an event, a command and a refusal as fields, one aggregate for its declared state,
    and another for its methods and for the state that it keeps in private attributes."""

    def __init__(self) -> None:
        private = dict.fromkeys(PRIVATE, never)
        self.events, self.commands, self.state, self.refusals = (
            {word: number for number, word in enumerate(fields_of(base)[0], 1) if word not in PRIVATE}
            for base in (DomainEvent, Command, AggregateRoot, DomainException)
        )
        self.Happened = class_of(DomainEvent, {"type_name": "words.Happened"}, [*self.events, *PRIVATE])
        self.Do = class_of(Command, {"type_name": "words.Do"}, [*self.commands, *PRIVATE])
        self.Refused = class_of(DomainException, {**private, "type_name": "words.Refused"}, self.refusals)
        happened = applies(self.Happened)
        applier = happened(lambda one, event: set_all(one, self.state, event.amount))
        declaring = {**private, "_reserved": applier, "type_name": "words.Declaring"}
        self.Declaring = class_of(AggregateRoot, declaring, self.state)
        applier = happened(lambda one, event: set_all(one, PRIVATE, event._reserved))
        methods = {word: never for word in methods_of(AggregateRoot)[0] if word not in PRIVATE}
        acting = {**methods, "really_accept": applier, "type_name": "words.Acting"}
        self.Acting = class_of(AggregateRoot, acting)

    def handle(self, command: Any, context: CommandContext) -> None:
        kind = self.Declaring if command.aggregate_root_id == "declaring" else self.Acting
        aggregate = context.find(kind) or kind(command.aggregate_root_id)
        context.add(aggregate)
        for _ in range(2):
            aggregate.apply(self.Happened(**self.events, _reserved=aggregate.version))
        if aggregate.version == 3:
            raise self.Refused("no", **self.refusals)


def set_all(aggregate: Any, names: Iterable[str], value: int) -> None:
    for name in names:
        setattr(aggregate, name, value)


@pytest.fixture
def used() -> Iterator[Used]:
    used = Used()
    command_handlers.add(used.Do, used.handle)
    yield used
    command_handlers.remove(used.Do, used.handle)


@pytest.mark.parametrize("id", ["declaring", "acting"])
def test_business_words_go_all_the_way_from_the_command_to_the_store_and_back(used: Used, id: str) -> None:
    store = MemoryEventStore()
    with inline(store) as bus:
        results = [try_command(used.Do(id, **used.commands)) for _ in range(4)]
    assert [result.status for result in results] == [CommandStatus.SUCCESS] * 3 + [CommandStatus.REFUSED]
    assert dict(results[3].error_fields) == used.refusals
    assert [event.id for event in bus.events] == [f"{id}/{number // 2 + 1}/{number % 2}" for number in range(6)]
    for event in bus.events:
        assert {name: getattr(event, name) for name in used.events} == used.events
    loaded = AggregateLoader(store).load(id)
    state, last = (PRIVATE, 2) if id == "acting" else (used.state, used.events["amount"])
    assert {getattr(loaded, name) for name in state} == {last}


def test_business_words_are_kept_in_snapshots(used: Used) -> None:
    aggregate = used.Declaring("a")
    aggregate.apply(used.Happened(amount=5))
    copy = read_snapshot(used.Declaring, snapshot_of(aggregate, "c")).rebuild()
    assert (differences(aggregate, copy), {getattr(copy, name) for name in used.state}) == ({}, {5})


HANDLERS = ["follows", "followed", "event_handlers", "handlers_of", "for_replay", "databases", "accept", "_methods"]


def test_a_handler_is_called_whatever_its_name_is(used: Used) -> None:
    others, of_projections = (dict.fromkeys(methods_of(base)[0], never) for base in (ProcessManager, ModelProjection))
    for word in HANDLERS:

        @handles(used.Happened)
        def answer(self: Any, event: Any) -> Any:
            yield used.Do("b", amount=event.amount)

        @handles(used.Happened)
        def change(self: Any, row: AccountSummary, event: Any) -> None:
            row.owner, row.opened_at = str(event.amount), event.timestamp

        own = {"name": f"words.{word}", word: answer}
        process = class_of(ProcessManager, {**others, **own})
        given(process, "a").when(used.Happened(amount=3)).then(used.Do("b", amount=3))
        own = {"name": f"words.{word}", word: change, "model": AccountSummary}
        projection = class_of(ModelProjection, {**of_projections, **own})
        given(projection, "a").when(used.Happened(amount=3)).then(owner="3")
        assert subscribers.follows(projection(), "words.Declaring")
