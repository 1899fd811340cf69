"""States, differences, causation, and who has reached what."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.test import override_settings

from enode_django import execute_command
from enode_django.bus.derived_ids import derived_id
from enode_django.eventing import parking
from enode_django.eventing.parking import Parked
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import AggregateNotFound, HistoryTooLong, UnknownMessageType
from enode_django.history import Change, State, causation, difference, reached, state_at
from enode_django.history.causation import Limits
from enode_django.models import Subscription
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.state import snapshot_of
from enode_django.repository.store import Snapshot
from enode_django.runtime import make_snapshots, make_store
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.bank.process_managers import TransferProcess
from sample_project.bank.projections import AccountSummaries
from tests.unit.test_sending_by_context import Ship

pytestmark = pytest.mark.django_db

NOTHING = STREAM + pack(([], None))


@pytest.fixture
def account() -> str:
    with inline():
        execute_command(OpenAccount("a", owner="Ada"))
        for amount in (1, 2, 3):
            execute_command(Deposit("a", amount=Decimal(amount)))
    return "a"


@pytest.fixture
def transfer(account: str) -> str:
    """Through all its steps; its id."""
    with inline():
        execute_command(OpenAccount("b", owner="Bob"))
        started = StartTransfer("t", id="start-t", source="a", target="b", amount=Decimal(1))
        execute_command(started)
    return "t"


def plant(id: str, command_id: str, cause: str | None = None, *, version: int = 1, **fields: Any) -> None:
    """Store a stream of a class that does not exist, caused by ``cause``."""
    about = {} if cause is None else {"causation_id": cause, "correlation_id": "root"}
    record = StreamRecord(id, version, command_id, "gone.Type", "gone.Do", datetime.now(UTC), NOTHING, pack(about))
    (appended,) = make_store().append([record._replace(**fields)])
    assert appended.stored is None


# -- states -------------------------------------------------------------------------------------------------------


def test_the_state_at_each_version_is_what_it_was(account: str) -> None:
    balances = [state_at(account, version).fields["balance"] for version in (1, 2, 3, 4)]
    assert balances == [0, 1, 3, 6]
    newest = state_at(account)
    assert (newest.version, newest.aggregate_root_type) == (4, "bank.BankAccount")


def test_a_version_that_is_not_stored_has_no_state(account: str) -> None:
    for id, version in ((account, 5), (account, 0), (account, -1), (account, 10**30), ("nobody", None), ("\0", 1)):
        with pytest.raises(AggregateNotFound):
            state_at(id, version)


def test_a_state_of_a_class_that_is_gone_names_the_class() -> None:
    plant("x", "c")
    with pytest.raises(UnknownMessageType, match=r"gone\.Type"):
        state_at("x")


def test_a_history_longer_than_wanted_is_not_replayed_unless_a_snapshot_shortens_it(account: str) -> None:
    assert state_at(account, 2, most=2).version == 2
    with pytest.raises(HistoryTooLong, match="3 streams"):
        state_at(account, 3, most=2)
    store = make_store()
    loaded = AggregateLoader(store).load("a", until=2)
    assert loaded is not None
    snapshots = make_snapshots(store)
    assert snapshots is not None
    (second,) = store.load_ranges({"a": (1, 2)})["a"]
    snapshots.save([snapshot_of(loaded, second.command_id)])
    assert state_at(account, 4, most=2).fields["balance"] == 6
    assert state_at(account, 2, most=0).fields["balance"] == 1
    assert state_at(account, 1, most=2).fields["balance"] == 0
    with override_settings(ENODE={"SNAPSHOTS": {"ENABLED": False}}), pytest.raises(HistoryTooLong):
        state_at(account, 4, most=2)


def planted_snapshot(account: str, *, command_id: str, payload: bytes = b"") -> Snapshot:
    """Save a snapshot of version 2, made by that command. ``payload``, if given, replaces its own."""
    store = make_store()
    loaded, snapshots = AggregateLoader(store).load(account, until=2), make_snapshots(store)
    assert loaded is not None
    assert snapshots is not None
    made = snapshot_of(loaded, command_id)
    made = made._replace(payload=payload or made.payload)
    snapshots.save([made])
    return made


@pytest.mark.parametrize(("command_id", "payload"), [("another", b""), ("any", b"broken")])
def test_looking_at_a_state_leaves_a_snapshot_that_is_of_no_use(account: str, command_id: str, payload: bytes) -> None:
    broken = planted_snapshot(account, command_id=command_id, payload=payload)
    snapshots = make_snapshots(make_store())
    assert snapshots is not None
    assert state_at(account).fields["balance"] == 6
    assert state_at(account, 3, most=4).fields["balance"] == 3
    assert snapshots.load([account]) == {account: broken}
    AggregateLoader(make_store(), snapshots).load(account)
    assert snapshots.load([account]) == {}, "who works with it replaces it"


def test_the_difference_between_two_versions_names_fields(account: str) -> None:
    changes = difference(state_at(account, 2), state_at(account, 4))
    assert changes == [Change(("balance",), "changed", Decimal(1), Decimal(6))]


def test_states_that_no_class_made_are_compared_by_their_values() -> None:
    one, other = (State("nowhere.Gone", "a", version, {"total": version}) for version in (1, 2))
    assert difference(one, other) == [Change(("total",), "changed", 1, 2)]


# -- causation ----------------------------------------------------------------------------------------------------


def test_what_follows_from_a_command_is_found_to_its_end(transfer: str) -> None:
    found = causation(transfer, 1)
    assert found.focus.command_id == "start-t"
    assert not found.ancestors
    commands = sorted(step.command_type.removeprefix("bank.") for step in found.descendants)
    assert commands == [
        "ConfirmDeposit",
        "ConfirmWithdrawal",
        "NoteMoved",
        "NoteMoved",
        "NoteReserved",
        "NoteReserved",
        "ReserveDeposit",
        "ReserveWithdrawal",
    ]
    assert not found.cut


def test_what_led_to_a_command_is_found_from_any_step(transfer: str) -> None:
    last = max(causation(transfer, 1).descendants, key=lambda step: step.created_at)
    found = causation(last.aggregate_root_id, last.version)
    assert found.ancestors[0].command_id == "start-t"
    for earlier, later in zip(found.ancestors, [*found.ancestors[1:], found.focus], strict=True):
        assert later.metadata.causation_id in earlier.causes
    assert not found.unknown_cause


def test_either_way_of_looking_finds_what_a_process_manager_sent(transfer: str) -> None:
    everything = causation(transfer, 1).descendants
    assert causation(transfer, 1, limits=Limits(window=0)).descendants == everything
    assert causation(transfer, 1, limits=Limits(derived=0)).descendants == everything
    blind = causation(transfer, 1, limits=Limits(window=0, derived=0))
    assert not blind.descendants
    assert "were searched" in blind.searched
    assert any("computed" in text for text in blind.cut)


def test_a_second_command_of_a_class_for_an_aggregate_is_found_by_its_id(transfer: str) -> None:
    cause, manager = causation(transfer, 1).focus.happened[0], subscribers.get(TransferProcess.name)
    second = derived_id(cause.id, key_of(manager), types.first_name_of(Deposit), "b", 2)
    plant("b", second, cause.id, version=state_at("b").version + 1)
    found = causation(transfer, 1, limits=Limits(window=0))
    assert second in [step.command_id for step in found.descendants]


def test_a_refusal_is_a_cause_too() -> None:
    with inline():
        execute_command(OpenAccount("a", owner="Ada"))
        execute_command(OpenAccount("b", owner="Bob"))
        execute_command(StartTransfer("t", source="a", target="b", amount=Decimal(7)))
    steps = {step.command_type: step for step in causation("t", 1).descendants}
    refused, cancelled = steps["bank.ReserveWithdrawal"], steps["bank.CancelTransfer"]
    assert refused.version is None
    assert cancelled.metadata.causation_id == refused.happened[0].id
    assert [step.command_type for step in causation("t", cancelled.version).ancestors] == [
        "bank.StartTransfer",
        "bank.ReserveWithdrawal",
    ]
    assert causation("a", command_id=refused.command_id).focus == refused


def test_a_command_may_name_another_command_as_its_cause() -> None:
    plant("x", "root")
    plant("y", "child", "root")
    assert [step.command_id for step in causation("x", 1).descendants] == ["child"]
    assert [step.command_id for step in causation("y", 1).ancestors] == ["root"]


def test_what_a_handler_sent_is_found_without_looking_around() -> None:
    with inline():
        execute_command(Ship("x", to="y", id="ship"))
    found = causation("x", 1, limits=Limits(window=0, derived=0))
    assert [step.key for step in found.descendants] == list(found.focus.sent)
    (ancestor,) = causation("y", 2).ancestors
    assert ancestor.command_id == "ship"


def test_a_cause_that_is_not_stored_is_named() -> None:
    plant("y", "child", "nobody/7/0")
    assert causation("y", 1).unknown_cause == "nobody/7/0"


def test_circles_and_long_chains_come_to_an_end() -> None:
    plant("x", "one", "two")
    plant("y", "two", "one")
    plant("z", "self", "self")
    assert [step.command_id for step in causation("x", 1).ancestors] == ["two"]
    assert causation("z", 1).unknown_cause == "self"
    for number in range(1, 40):
        plant(f"chain{number}", f"chain{number}", f"chain{number - 1}")
    plant("chain0", "chain0")
    down = causation("chain1", 1, limits=Limits(depth=5))
    assert len(down.descendants) == 5
    assert any("deep" in text for text in down.cut)
    assert causation("chain34", 1, limits=Limits(depth=5, ancestors=40)).cut == []
    up = causation("chain39", 1, limits=Limits(ancestors=3))
    assert [step.command_id for step in up.ancestors] == ["chain36", "chain37", "chain38"]
    assert up.unknown_cause == "chain35"
    assert up.cut


def test_a_broad_causation_is_cut_and_says_so() -> None:
    plant("x", "root")
    for number in range(9):
        plant(f"y{number}", f"child{number}", "root")
    found = causation("x", 1, limits=Limits(steps=4))
    assert len(found.descendants) == 4
    assert found.cut == ["no more than 4 commands"]


def test_what_cannot_be_read_is_a_step_without_events() -> None:
    plant("x", "c", events=b"\xff", metadata=b"\xc1")
    focus = causation("x", 1).focus
    assert focus.trouble
    assert not focus.happened


@pytest.mark.parametrize(
    ("id", "version", "command"), [("x", 2, ""), ("x", None, "no"), ("\0", 1, ""), ("x", 2**70, ""), ("x", "1", "")]
)
def test_a_command_that_is_not_there_has_no_causation(id: str, version: Any, command: str) -> None:
    plant("x", "c")
    with pytest.raises(AggregateNotFound):
        causation(id, version, command_id=command)


# -- positions of subscribers -------------------------------------------------------------------------------------


def test_subscribers_say_how_far_they_are(account: str) -> None:
    with subscribers.only(AccountSummaries, TransferProcess):
        before = {one.subscriber: one for one in reached(account)}
    assert before["bank.AccountSummaries"].version == 4
    with inline(followed_by=[]):
        execute_command(Deposit("a", amount=Decimal(4)))
        execute_command(Withdraw("a", amount=Decimal(4)))
    with subscribers.only(AccountSummaries):
        (after,) = reached(account)
    assert (after.version, after.behind, after.parked) == (4, 2, "")


def test_one_that_has_not_begun_is_not_begun_by_asking(db: None) -> None:
    with inline(followed_by=[]):
        execute_command(OpenAccount("a", owner="Ada"))
    with subscribers.only(TransferProcess):
        (one,) = reached("a")
    assert (one.version, one.behind) == (None, 1)
    assert not Subscription.objects.exists()


def test_a_parked_aggregate_is_said_to_be_parked(account: str) -> None:
    now = datetime.now(UTC)
    subscriber = subscribers.get("bank.AccountSummaries")
    parking.park(
        subscriber.database,
        Parked(subscriber.name, "bank.BankAccount", account, 4, "c", "KeyError", "…", 5, now, now),
    )
    parked = {one.subscriber: one.parked for one in reached(account)}
    assert parked["bank.AccountSummaries"] == "KeyError"
    assert parked["bank.Ledger"] == ""
