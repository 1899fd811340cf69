"""Internal commands of a process manager that people send, and ids that people enter and a process manager uses."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils import timezone

from enode_django import Command, execute_command, try_command
from enode_django.api.exposure import all_offered
from enode_django.domain.declarations import schema_of
from enode_django.exceptions import DefinitionError
from enode_django.forms import CommandForm, command_form
from enode_django.models import EventStream, ParkedEvent
from enode_django.serializers import CommandSerializer
from enode_django.testing import inline
from sample_project.bank import domain
from sample_project.bank.domain import Deposit, OpenAccount, ReserveDeposit, ReserveWithdrawal, StartTransfer
from tests.admin.users import client_of
from tests.api.calls import logged_in, problem

INTERNAL = {
    "ReserveWithdrawal", "ReserveDeposit", "ConfirmWithdrawal", "ConfirmDeposit", "CancelReservation", "NoteReserved",
    "NoteMoved", "CancelTransfer",
}  # fmt: skip


@pytest.fixture
def accounts(db: None) -> Iterator[None]:
    with inline():
        execute_command(OpenAccount("a", owner="Ada"))
        execute_command(Deposit("a", amount=Decimal(5)))
        yield


def test_the_sample_offers_none_of_its_process_managers_commands(accounts: None) -> None:
    assert not {f"bank.{name}" for name in INTERNAL} & {name for name, _ in all_offered()}
    sender = logged_in("send_command")
    for name in INTERNAL:
        unknown = problem(sender.send(f"bank.{name}", "a", {"transfer": "t"}), 404)
        assert unknown["type"] == "urn:problem-type:enode:unknown-type"


@override_settings(
    ENODE={"API": {"COMMANDS": {"bank.*": ["enode_django.send_command"], "bank.NoteMoved": ["bank.mend"]}}}
)
def test_settings_offer_an_internal_command_only_by_its_very_name() -> None:
    assert {name.partition(".")[2] for name, _ in all_offered()} & INTERNAL == {"NoteMoved"}


def test_an_internal_command_has_no_form_and_no_serializer_unless_they_say_so() -> None:
    with pytest.raises(DefinitionError, match="which only code sends"):
        command_form(ReserveDeposit)

    class ReserveSerializer(CommandSerializer):
        class Meta:
            command = ReserveDeposit

    with pytest.raises(DefinitionError, match="internal = True"):
        ReserveSerializer().get_fields()

    class ForOperators(CommandForm):
        class Meta:
            command = ReserveDeposit
            internal = True

    assert set(ForOperators().fields) == {"transfer", "amount", "command_id"}


def test_the_admin_offers_internal_commands_to_superusers_only(accounts: None) -> None:
    now = timezone.now()
    parked = ParkedEvent.objects.create(
        **{"subscriber": "bank.Ledger", "aggregate_root_type": "bank.BankAccount", "aggregate_root_id": "a"},
        **{"version": 2, "command_id": "c", "error_type": "ValueError", "error": "", "attempts": 5},
        **{"first_failed_at": now, "last_failed_at": now},
    )
    page = f"/admin/enode_django/parkedevent/{parked.pk}/command/"
    above = Client()
    above.force_login(User.objects.create_superuser("root", password=None))
    for client, status in ((client_of("change_parkedevent", "view_payload"), 404), (above, 200)):
        assert ("bank.ReserveDeposit" in client.get(page).content.decode()) == (status == 200)
        assert client.get(page, {"type": "bank.ReserveDeposit"}).status_code == status
        assert client.get(page, {"type": "bank.Deposit"}).status_code == 200


@pytest.mark.parametrize("id", ["x" * 300, "", "\0"])
def test_an_id_that_can_be_none_is_refused_before_a_process_manager_uses_it(accounts: None, id: str) -> None:
    """``inline`` raises the error for which a subscriber would park the aggregate."""
    before = EventStream.objects.count()
    wrong: list[Command] = [
        ReserveDeposit("a", transfer=id, amount=Decimal(1)),
        ReserveWithdrawal("a", transfer=id, amount=Decimal(100)),  # more than the balance
        ReserveWithdrawal("nowhere", transfer=id, amount=Decimal(1)),
        StartTransfer("t", source="a", target=id, amount=Decimal(1)),
        StartTransfer("t", source=id, target="a", amount=Decimal(1)),
    ]
    assert {try_command(command).error_type for command in wrong} == {"InvalidId"}
    assert EventStream.objects.count() == before


def test_exposed_is_no_field_and_is_inherited() -> None:
    class Inner(ReserveDeposit):
        type_name = "attacks.Inner"

    class Outer(ReserveDeposit):
        type_name = "attacks.Outer"
        exposed = True

    assert (Inner.exposed, Outer.exposed, Command.exposed) == (False, True, True)
    assert "exposed" not in schema_of(Inner).names
    with pytest.raises(DefinitionError, match="declares the field 'exposed'"):

        class Shown(Command):
            type_name = "attacks.Shown"
            exposed: bool

    assert {name for name in INTERNAL if getattr(domain, name).exposed} == set()
