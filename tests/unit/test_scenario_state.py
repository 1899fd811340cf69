"""A scenario finds state that the stored events do not give, and values of rows that are not stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from itertools import count as counter
from math import inf
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import override_settings

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    ModelProjection,
    MultiProjection,
    applies,
    command_handler,
    handles,
)
from enode_django.testing import given
from sample_project.bank.domain import AccountOpened, Deposited, TransferConfirmed
from sample_project.bank.models import AccountSummary, Payee

ticks = counter()


class Open(Command):
    type_name = "unit.state.Open"
    forgets: bool = False


class Peek(Command):
    type_name = "unit.state.Peek"


class Close(Command):
    type_name = "unit.state.Close"


class Lock(Command):
    type_name = "unit.state.Lock"


class Opened(DomainEvent):
    type_name = "unit.state.Opened"


class Ticked(DomainEvent):
    type_name = "unit.state.Ticked"


class Misspelt(DomainEvent):
    type_name = "unit.state.Misspelt"


class Locked(DomainException):
    type_name = "unit.state.Locked"


class Door(AggregateRoot):
    type_name = "unit.state.Door"
    is_open: bool = False
    peeks: int = 0
    tick: int = 0
    opened_at: datetime | None = None

    @command_handler(creates=True)
    def open(self, command: Open) -> None:
        self.apply(Opened())
        if command.forgets:
            self.is_open = False

    @command_handler
    def peek(self, command: Peek) -> None:
        self.peeks += 1

    @command_handler
    def close(self, command: Close) -> None:
        self.peeks += 1
        raise Locked("it is locked")

    @command_handler
    def lock(self, command: Lock) -> None:
        self.is_open = False
        self.apply(Opened())
        raise Locked("it is locked")

    @cached_property
    def name(self) -> str:
        return self.id.upper()

    @applies
    def _opened(self, event: Opened) -> None:
        self.is_open, self.opened_at = bool(self.name), event.timestamp


def test_what_the_events_give_is_right() -> None:
    given().when(Open("d")).then(Opened())


def test_a_field_that_a_handler_sets_after_its_event_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Open leaves Door\.is_open = False, .* its events give True.*@applies"):
        given().when(Open("d", forgets=True))


def test_a_field_that_a_handler_sets_without_an_event_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Peek leaves Door\.peeks = 1, .* its events give 0"):
        given(Opened()).when(Peek("d"))


def test_a_field_that_a_refusing_handler_sets_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Close leaves Door\.peeks = 1, .* its events give 0"):
        given(Opened()).when(Close("d"))


def test_a_worker_takes_back_what_a_refusing_handler_has_applied() -> None:
    given(Opened()).when(Lock("d")).then_refused(Locked)


class Count(Command):
    type_name = "unit.state.Count"


class Counted(DomainEvent):
    type_name = "unit.state.Counted"
    last: int


class Series(AggregateRoot):
    type_name = "unit.state.Series"
    last: int = 0

    @command_handler
    def count(self, command: Count) -> None:
        self.apply(Counted(last=self.last + 1))

    @applies
    def _counted(self, event: Counted) -> None:
        self.last = event.last


def test_a_repeat_whose_events_are_not_stored_again_is_left_alone() -> None:
    count = Count("s", id="c1")
    given(Series, Counted(last=1)).when(count).then(Counted(last=2)).when(count).then(Counted(last=2))


class Tick(Command):
    type_name = "unit.state.Tick"


class Clock(AggregateRoot):
    type_name = "unit.state.Clock"
    tick: int = -1

    @command_handler(creates=True)
    def start(self, command: Tick) -> None:
        self.apply(Ticked())

    @applies
    def _ticked(self, event: Ticked) -> None:
        self.tick = next(ticks)


def test_an_applier_that_depends_on_more_than_its_event_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Tick leaves Clock\.tick = \d+, .* its events give \d+"):
        given().when(Tick("c"))


class Weigh(Command):
    type_name = "unit.state.Weigh"


class Weighed(DomainEvent):
    type_name = "unit.state.Weighed"
    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    name: str


class Scale(AggregateRoot):
    type_name = "unit.state.Scale"
    parts: list[Part] = dataclasses.field(default_factory=list)
    mean: float = 0.0

    @command_handler(creates=True)
    def weigh(self, command: Weigh) -> None:
        self.apply(Weighed(name="a"))

    @applies
    def _weighed(self, event: Weighed) -> None:
        self.parts.append(Part(event.name))
        self.mean = inf - inf


def test_values_that_are_equal_only_to_themselves_are_compared_as_they_are_shown() -> None:
    given().when(Weigh("s")).then(Weighed(name="a"))


class Spell(Command):
    type_name = "unit.state.Spell"


class Undeclared(AggregateRoot):
    type_name = "unit.state.Undeclared"
    status: str = ""
    _note = ""

    @command_handler(creates=True)
    def spell(self, command: Spell) -> None:
        self.apply(Misspelt())

    @applies
    def _misspelt(self, event: Misspelt) -> None:
        self._note = "names with an underscore are the class's own"
        self.stauts = "spelt"


def test_state_that_is_not_declared_is_found_since_snapshots_do_not_keep_it() -> None:
    with pytest.raises(AssertionError, match=r"sets Undeclared\.stauts, which is not declared.*\(status\)"):
        given().when(Spell("u"))


class Note(Command):
    type_name = "unit.state.Note"
    text: str = ""


class Noted(DomainEvent):
    type_name = "unit.state.Noted"
    text: str


class WithConstructor(AggregateRoot):
    type_name = "unit.state.WithConstructor"
    text: str = ""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.prefix = id.partition("-")[0]
        self.texts: list[str] = []

    @command_handler(creates=True)
    def note(self, command: Note) -> None:
        self.apply(Noted(text=command.text))

    @applies
    def _noted(self, event: Noted) -> None:
        self.text = event.text
        if event.text:
            self.texts.append(event.text)


def test_what_the_constructor_sets_is_left_alone_until_it_changes() -> None:
    given().when(Note("n-1")).then(Noted(text=""))
    with pytest.raises(AssertionError, match=r"Note sets WithConstructor\.texts, which is not declared"):
        given().when(Note("n-1", text="kept"))


class SpellOut(Command):
    type_name = "unit.state.SpellOut"


class KeptByItself(Undeclared):
    type_name = "unit.state.KeptByItself"

    @command_handler(creates=True)
    def spell_out(self, command: SpellOut) -> None:
        self.apply(Misspelt())

    def snapshot(self) -> Any:
        return self.stauts

    def restore(self, plain: Any) -> None:
        self.stauts = plain


def test_a_class_that_makes_its_own_snapshots_may_keep_other_state() -> None:
    given().when(SpellOut("k")).then(Misspelt())


class MisspeltSummaries(ModelProjection[AccountSummary]):
    abstract = True
    name = "unit.misspelt_summaries"

    @handles
    def opened(self, row: AccountSummary, event: AccountOpened) -> None:
        row.ownr = event.owner  # type: ignore[attr-defined]


class MisspeltPayees(MultiProjection[Payee], key=lambda event: (event.source, event.target)):
    abstract = True
    name = "unit.misspelt_payees"
    key_field = ("source", "target")

    @handles
    def confirmed(self, row: Payee, event: TransferConfirmed) -> None:
        row.transfer = 1  # type: ignore[attr-defined]


def test_a_value_of_a_row_that_is_no_field_is_found() -> None:
    with pytest.raises(AssertionError, match=r"MisspeltSummaries sets 'ownr', .*no field of AccountSummary .*owner"):
        given(MisspeltSummaries, "a").when(AccountOpened(owner="Ada"))
    with pytest.raises(AssertionError, match=r"MisspeltPayees sets 'transfer', .*no field of Payee .*transfers"):
        given(MisspeltPayees, "t").when(TransferConfirmed(source="ann", target="bob"))


class SummaryWithConstructor(AccountSummary):
    class Meta:
        app_label = "scenario_state"  # of no installed app, which would lack a migration
        proxy = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owner_before = self.owner


class SummariesWithConstructor(ModelProjection[SummaryWithConstructor]):
    abstract = True
    name = "unit.summaries_with_constructor"

    @handles
    def opened(self, row: SummaryWithConstructor, event: AccountOpened) -> None:
        row.owner, row.opened_at = event.owner, event.timestamp


def test_what_the_constructor_of_a_row_sets_is_left_alone() -> None:
    given(SummariesWithConstructor, "a").when(AccountOpened(owner="Ada")).then(owner="Ada")


@pytest.fixture
def sqlite() -> Iterator[None]:
    """A database of another kind, which nothing is ever asked of."""
    settings = {**connections["default"].settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections["sqlite"] = DatabaseWrapper(settings, "sqlite")
    yield
    del connections["sqlite"]


class SavedSummaries(ModelProjection[AccountSummary]):
    abstract = True
    name = "unit.saved_summaries"

    @handles
    def opened(self, row: AccountSummary, event: AccountOpened) -> None:
        Payee.objects.create(source="ann", target="bob", last_at=event.timestamp)  # not its rows
        row.owner = str(AccountSummary.objects.count())
        row.opened_at = event.timestamp

    @handles
    def deposited(self, row: AccountSummary, event: Deposited) -> None:
        row.save()


class SavedPayees(MultiProjection[Payee], key=lambda event: (event.source, event.target)):
    abstract = True
    name = "unit.saved_payees"
    key_field = ("source", "target")

    @handles
    def confirmed(self, row: Payee, event: TransferConfirmed) -> None:
        Payee.objects.all().delete()


@pytest.mark.django_db
def test_a_handler_cannot_write_into_the_table_of_its_rows() -> None:
    row = given(SavedSummaries, "a", AccountOpened(owner="Ada")).then(owner="0")
    told = r"SavedSummaries writes .* 'default': 'UPDATE .*change the row alone"
    with pytest.raises(AssertionError, match=told), transaction.atomic():
        row.when(Deposited(amount=Decimal(1), balance=Decimal(1)))
    told = r"SavedPayees writes .* 'default': 'DELETE .*change the row alone"
    with pytest.raises(AssertionError, match=told), transaction.atomic():
        given(SavedPayees, "t").when(TransferConfirmed(source="ann", target="bob"))
    AccountSummary(aggregate_root_id="b", opened_at=datetime.now(UTC)).save()
    assert not AccountSummary.objects.filter(pk="a").exists()


@pytest.mark.parametrize("model", [AccountSummary, SummaryWithConstructor])
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_a_row_is_a_stored_one_from_the_second_event_on(alias: str, model: type[AccountSummary], sqlite: None) -> None:
    found: list[tuple[bool, str | None]] = []

    class Summaries(ModelProjection[AccountSummary]):
        abstract = True
        name = "unit.state_of_rows"

        @handles
        def opened(self, row: AccountSummary, event: AccountOpened) -> None:
            found.append((row._state.adding, row._state.db))

    class Router:
        def db_for_write(self, model: object, **hints: object) -> str:
            return alias

    Summaries.model = model
    with override_settings(DATABASE_ROUTERS=[Router()]):
        given(Summaries, "a", *[AccountOpened(owner="Ada")] * 3)
    assert found == [(True, None), (False, alias), (False, alias)]


class UnfinishedSummaries(ModelProjection[AccountSummary]):
    abstract = True
    name = "unit.unfinished_summaries"

    @handles
    def opened(self, row: AccountSummary, event: AccountOpened) -> None:
        row.owner = event.owner

    @handles
    def deposited(self, row: AccountSummary, event: Deposited) -> None:
        row.opened_at = event.timestamp


class UnfinishedPayees(MultiProjection[Payee], key=lambda event: (event.source, event.target)):
    abstract = True
    name = "unit.unfinished_payees"
    key_field = ("source", "target")

    @handles
    def confirmed(self, row: Payee, event: TransferConfirmed) -> None:
        row.transfers += 1


def test_a_row_that_the_database_would_refuse_is_found_when_it_is_looked_at() -> None:
    opened = given(UnfinishedSummaries, "a", AccountOpened(owner="Ada"))
    with pytest.raises(AssertionError, match=r"leaves AccountSummary\.opened_at None, which .* refuses; set it,"):
        opened.then(owner="Ada")
    opened.when(Deposited(amount=Decimal(1), balance=Decimal(1))).then(owner="Ada")
    payees = given(UnfinishedPayees, "t").when(TransferConfirmed(source="ann", target="bob"))
    with pytest.raises(AssertionError, match=r"leaves Payee\.last_at None, which the database refuses"):
        payees.then(("ann", "bob"), transfers=1)
