"""Commands that claim, confirm and release unique values, in one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from decimal import Decimal

import pytest

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.commanding.handler_retries import HandlerRetries
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import ValueTaken
from enode_django.domain.unique import Unique
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.unique_values import (
    Claim,
    MemoryUniqueValues,
    Owner,
    UniqueKey,
    UniqueValue,
    unique_values_of,
)
from enode_django.exceptions import ConfigurationError, DefinitionError, StoreUnavailable
from enode_django.repository.unique_keys import names_of
from tests.races.harness import Worker
from tests.unique.domain import ChangeEmail, ChangeNumber, Join, Leave, Member, Wave, emails, handlers

REFUSED, SUCCESS = CommandStatus.REFUSED, CommandStatus.SUCCESS


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    return Worker(store, table=handlers)


def taken(result: CommandResult, *fields: str) -> bool:
    return (result.status, result.error_type, tuple(result.error_fields.get("fields", ()))) == (
        REFUSED,
        "enode.ValueTaken",
        fields,
    )


def rows(store: MemoryEventStore) -> list[UniqueValue]:
    return list(store.unique_values.rows())


def test_a_taken_value_is_refused_with_its_field_and_the_others_are_free(
    store: MemoryEventStore, worker: Worker
) -> None:
    first, second, third = worker.run(
        Join("a", email="Ada@x.org"), Join("b", email="ada@X.org"), Join("b", email="bob@x.org")
    )
    assert (first.status, third.status) == (SUCCESS, SUCCESS)
    assert taken(second, "email")
    assert second.error_message == "this email is taken"
    assert emails(store, "a", "b") == {"a": "Ada@x.org", "b": "bob@x.org"}
    assert all(row.is_settled for row in rows(store))


def test_the_refusal_is_stored_and_a_repeat_is_refused_again(store: MemoryEventStore, worker: Worker) -> None:
    join = Join("b", email="ada@x.org")
    worker.run(Join("a", email="ada@x.org"))
    (refused,) = worker.run(join)
    worker.run(Leave("a"))
    (again,) = Worker(store, table=handlers).run(join)
    assert (
        (again.status, again.error_fields) == (refused.status, refused.error_fields) == (REFUSED, {"fields": ["email"]})
    )
    (other,) = worker.run(Join("b", email="ada@x.org"))
    assert other.status is SUCCESS


def test_fields_are_unique_together(store: MemoryEventStore, worker: Worker) -> None:
    results = worker.run(
        Join("a", email="a", team="red", number=7),
        Join("b", email="b", team="red", number=8),
        Join("c", email="c", team="blue", number=7),
        ChangeNumber("b", team="red", number=7),
        ChangeNumber("b", team="blue", number=7),
        ChangeNumber("b", team="red", number=None),
    )
    results += worker.run(ChangeNumber("c", team="red", number=8))
    assert [taken(result, "team", "number") for result in results] == [False, False, False, True, True, False, False]
    assert results[3].error_message == "this shirt is worn"


def test_a_changed_value_is_released_and_so_is_one_that_is_gone(store: MemoryEventStore, worker: Worker) -> None:
    results = worker.run(
        Join("a", email="one"),
        ChangeEmail("a", email="two"),
        ChangeEmail("a", email="TWO"),
        Leave("a"),
    )
    assert {result.status for result in results} == {SUCCESS}
    assert rows(store) == []
    results = worker.run(Join("b", email="one"), Join("c", email="two"))
    assert {result.status for result in results} == {SUCCESS}


def test_what_changes_within_one_batch_ends_as_the_last_stream_says(store: MemoryEventStore, worker: Worker) -> None:
    worker.send(Join("a", email="x"), ChangeEmail("a", email="y"), ChangeEmail("a", email="x"))
    worker.handle()
    assert [(len(row.claims), len(row.releases)) for row in rows(store)] in ([(2, 1), (1, 1)], [(1, 1), (2, 1)])
    worker.settle()
    (row,) = rows(store)
    assert (row.is_settled, row.version) == (True, 3)
    refused, free = worker.run(Join("b", email="x"), Join("c", email="y"))
    assert taken(refused, "email")
    assert free.status is SUCCESS


def test_two_aggregates_swap_their_values_over_a_third_one(store: MemoryEventStore, worker: Worker) -> None:
    worker.run(Join("a", email="x"), Join("b", email="y"))
    directly = worker.run(ChangeEmail("a", email="y"), ChangeEmail("b", email="x"))
    assert all(taken(result, "email") for result in directly)
    by_way = worker.run(ChangeEmail("a", email="z"), ChangeEmail("b", email="x"), ChangeEmail("a", email="y"))
    # All three in one batch: that of "a" is not stored yet when "b" asks for its value.
    assert [result.status for result in by_way] == [SUCCESS, REFUSED, REFUSED]
    for command in (ChangeEmail("b", email="x"), ChangeEmail("a", email="y")):
        (result,) = worker.run(command)
        assert result.status is SUCCESS
    assert emails(store, "a", "b") == {"a": "y", "b": "x"}


def test_a_released_value_is_free_as_soon_as_the_release_is_stored(store: MemoryEventStore, worker: Worker) -> None:
    """The value need not wait until the release is confirmed: the sender already has the answer."""
    worker.run(Join("a", email="x"))
    worker.send(ChangeEmail("a", email="y"))
    worker.handle()
    worker.commit()  # answered; not delivered to the command mailbox
    (result,) = Worker(store, table=handlers).run(Join("b", email="x"))
    assert result.status is SUCCESS
    worker.settle()
    assert {row.aggregate_root_id for row in rows(store)} == {"a", "b"}
    assert all(row.is_settled for row in rows(store))


def test_a_command_that_changes_nothing_unique_asks_nobody(store: MemoryEventStore, worker: Worker) -> None:
    worker.run(Join("a", email="x"))
    store.unique_values = Untouchable()  # type: ignore[assignment]
    worker.processor._uniqueness._found = Untouchable()  # type: ignore[assignment]
    (waved,) = worker.run(Wave("a"))
    assert waved.status is SUCCESS


class Untouchable:
    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} is called")


class Counted(MemoryUniqueValues):
    """Notes the ids of the aggregates that claim together."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []

    def claim_all(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue]]:
        self.together.append([one.owner.aggregate_root_id for one in claims])
        return super().claim_all(claims)


def counted(worker: Worker) -> Counted:
    values = Counted()
    worker.processor._uniqueness._found = values
    return values


def test_the_commands_of_a_batch_claim_together_and_a_refused_one_breaks_no_other(worker: Worker) -> None:
    values = counted(worker)
    worker.run(Join("z", email="3"))
    results = worker.run(*(Join(f"m{n}", email=str(n)) for n in range(6)))
    assert [result.status for result in results] == [SUCCESS] * 3 + [REFUSED] + [SUCCESS] * 2
    assert taken(results[3], "email")
    assert values.together == [["z"], [f"m{n}" for n in range(6)]]
    assert {row.aggregate_root_id for row in values.rows()} == {"z", "m0", "m1", "m2", "m4", "m5"}


def test_who_meets_a_command_that_waits_for_its_values_waits_for_its_decision(worker: Worker) -> None:
    """A second command of its aggregate, and another one for its value."""
    values = counted(worker)
    commands = [
        Join("a", email="x"),
        Join("b", email="y"),
        Wave("a"),
        Join("c", email="z"),
        Join("d", email="Z"),
        Join("e", email="w"),
    ]
    results = worker.run(*commands)
    assert [result.status for result in results] == [SUCCESS] * 4 + [REFUSED, SUCCESS]
    assert values.together == [["a", "b"], ["c"], ["d", "e"]]
    assert results[2].version == 2


def test_an_error_of_one_claim_fails_its_command_alone(worker: Worker) -> None:
    class Particular(Counted):
        def claim_all(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue]]:
            if any(one.owner.aggregate_root_id == "b" for one in claims):
                raise ValueError("not this one")
            return super().claim_all(claims)

    worker.processor._uniqueness._found = Particular()
    results = worker.run(*(Join(id, email=id) for id in "abc"))
    assert [result.status for result in results] == [SUCCESS, CommandStatus.FAILED, SUCCESS]


class AwayForOneClaim(MemoryUniqueValues):
    is_away = True

    def claim(self, owner: Owner, claims: Sequence[UniqueKey], releases: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailable("the first shard is away")
        return super().claim(owner, claims, releases)


def test_while_the_values_are_away_the_command_waits_and_others_do_not(store: MemoryEventStore) -> None:
    worker = Worker(store, table=handlers, retries=HandlerRetries(1, 1.0))
    worker.run(Join("b", email="b"))
    store.unique_values = worker.processor._uniqueness._found = AwayForOneClaim()
    worker.send(Join("a", email="x"), Wave("b"))
    worker.settle()
    assert [one.envelope.aggregate_root_id for one in worker.finished] == ["b", "b"]
    worker.clock.now += 1
    worker.settle()
    assert emails(store, "a") == {"a": "x"}
    (row,) = rows(store)
    assert row.is_settled


class LosesConfirmations(MemoryEventStore):
    def find(self, keys: object) -> Mapping[tuple[str, str], StreamRecord]:
        raise StoreUnavailable("away")


def test_a_confirmation_that_fails_leaves_the_claim_to_whoever_meets_it(worker: Worker) -> None:
    store = LosesConfirmations()
    worker = Worker(store, table=handlers)
    worker.run(Join("a", email="x"))
    (row,) = rows(store)
    assert list(row.claims.values()) == ["unique.Join"]
    store.find = MemoryEventStore.find.__get__(store)  # type: ignore[method-assign]
    (refused,) = worker.run(Join("b", email="x"))
    assert taken(refused, "email")
    (row,) = rows(store)
    assert (row.aggregate_root_id, row.is_settled) == ("a", True)


# -- declarations -----------------------------------------------------------------------------------------------------


def test_names_come_from_the_class_that_declares_and_can_be_given() -> None:
    class Base(AggregateRoot):
        type_name = "unique.Base"
        aliases = ("unique.Oldest",)
        code: str = ""
        unique = Unique("code")

    class Child(Base):
        type_name = "unique.Child"

    class Named(AggregateRoot):
        type_name = "unique.Named"
        code: str = ""
        unique = [Unique("code", name="codes")]

    assert names_of(Base) == names_of(Child) == ["unique.Oldest:code"]
    assert names_of(Named) == ["codes"]
    assert names_of(Member) == ["unique.Member:email", "unique.Member:team,number"]


@pytest.mark.parametrize("given", [5, "email", [Unique("email"), "email"], None])
def test_unique_takes_declarations_only(given: object) -> None:
    with pytest.raises(DefinitionError, match="unique = "):
        type("Wrong", (AggregateRoot,), {"unique": given, "type_name": "unique.Wrong"})


def test_a_declaration_names_fields() -> None:
    for fields in ((), ("",), ("a", "a"), (5,)):
        with pytest.raises(DefinitionError, match="names of fields"):
            Unique(*fields)  # type: ignore[arg-type]


def test_a_value_that_is_no_scalar_cannot_be_unique() -> None:
    with pytest.raises(DefinitionError, match=r"\['a'\] cannot be unique"):
        Unique("tags").digest_of([["a"]])


def test_what_belongs_to_nobody_has_no_digest() -> None:
    assert Unique("a").digest_of([None]) is None
    assert Unique("a").digest_of([""]) is None
    assert Unique("a", "b").digest_of(["x", None]) is None
    assert Unique("a", normalize=str.strip).digest_of(["  "]) is None
    assert Unique("a", normalize=lambda value: None).digest_of(["x"]) is None
    assert Unique("a").digest_of([0]) is not None


def test_equal_numbers_of_a_type_have_one_digest() -> None:
    for one, other in ((0.0, -0.0), (Decimal("0.0"), Decimal(-0)), (Decimal("1.50"), Decimal("1.5"))):
        assert Unique("a").digest_of([one]) == Unique("a").digest_of([other])


def test_the_refusal_can_be_raised_by_a_handler_too() -> None:
    assert ValueTaken("no", fields=("email",)).fields == ("email",)


def test_a_driver_without_unique_values_is_named(store: MemoryEventStore) -> None:
    class Foreign:
        def __init__(self, store: EventStore) -> None:
            self.shards = (self,)

    with pytest.raises(ConfigurationError, match="Foreign has no attribute unique_values"):
        unique_values_of(Foreign(store))  # type: ignore[arg-type]


class Tag(Command):
    type_name = "unique.Tag"
    tag: str


class Tagged(DomainEvent):
    type_name = "unique.Tagged"
    tag: str


class Thing(AggregateRoot):
    type_name = "unique.Thing"
    tags: list[str] = field(default_factory=list)
    unique = Unique("tags", normalize=" ".join)

    @applies(Tagged)
    def _tagged(self, event: Tagged) -> None:
        self.tags.append(event.tag)


def test_a_value_that_is_changed_in_place_is_claimed(store: MemoryEventStore) -> None:
    def tag(command: Tag, context: CommandContext) -> None:
        thing = context.find(Thing)
        if thing is None:
            thing = Thing(command.aggregate_root_id)
            context.add(thing)
        thing.apply(Tagged(tag=command.tag))

    table = HandlerTable()
    table.add(Tag, tag)
    worker = Worker(store, table=table)
    fine = worker.run(Tag("a", tag="red"), Tag("a", tag="large"))
    fine += worker.run(Tag("b", tag="red"))
    assert [one.status for one in fine] == [SUCCESS] * 3
    (refused,) = worker.run(Tag("b", tag="large"))
    assert taken(refused, "tags")
