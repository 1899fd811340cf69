"""`execute_command` raises an exception for a command without effect. It can be stored, restored and copied."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    DomainException,
    VersionMismatch,
    aexecute_command,
    atry_command,
    command_handler,
    execute_command,
    try_command,
    upcasts,
)
from enode_django.bus.results import ANSWER, CommandResult, decode_result, encode_result, failure, stored_result
from enode_django.domain.refusals import UnknownRefusal
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandFailed, DefinitionError
from enode_django.serialization.codec import REFUSAL, encode_refusal
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.plain import pack, unpack
from enode_django.testing import inline


class Purse(AggregateRoot):
    type_name = "raised.Purse"


class Pay(Command):
    type_name = "raised.Pay"
    amount: Decimal


class TooDear(DomainException):
    type_name = "raised.TooDear"
    schema_version = 2
    missing: Decimal
    currency: str = "EUR"


class Locked(DomainException):
    type_name = "raised.Locked"
    schema_version = 2
    keys: list[str]


class Sealed(DomainException):
    type_name = "Sealed"
    durable = False


@upcasts(TooDear, from_version=1)
def _cents_were_stored(fields: dict[str, Any]) -> dict[str, Any]:
    return {"missing": Decimal(fields.pop("cents")) / 100, **fields}


@upcasts(Locked, from_version=1)
def _one_key_was_stored(fields: dict[str, Any]) -> dict[str, Any]:
    return {"keys": {fields.pop("key")}}  # a mistake: a set is not plain


@command_handler(Pay)
def pay(command: Pay, context: CommandContext) -> None:
    if command.amount > 100:
        raise ZeroDivisionError("the purse burst")
    if command.amount > 50:
        raise Sealed("it is sealed")
    raise TooDear("too dear", missing=command.amount)


DEAR = Pay("ada", id="p1", amount=Decimal("1.50"))
BURST = Pay("ada", id="p2", amount=Decimal(101))
SEALED = Pay("ada", id="p3", amount=Decimal(51))


@pytest.fixture(autouse=True)
def _in_memory() -> Iterator[None]:
    with inline(MemoryEventStore()):
        yield


def _awaited(command: Command) -> Any:
    return asyncio.run(aexecute_command(command))


both_forms = pytest.mark.parametrize("execute", [execute_command, _awaited])


@both_forms
def test_the_domain_exception_that_refused_is_raised_with_its_fields_ids_and_result(
    execute: Callable[[Command], object],
) -> None:
    with pytest.raises(TooDear, match=r"^too dear$") as caught:
        execute(DEAR)
    error = caught.value
    assert (error.message, error.missing, error.currency) == ("too dear", Decimal("1.50"), "EUR")
    assert (error.command_id, error.aggregate_root_id, error.id) == ("p1", "ada", "ada/refused/p1")
    assert error.result == try_command(DEAR)
    with pytest.raises(AttributeError, match="was not read from the event store"):
        error.timestamp  # noqa: B018


@both_forms
def test_a_refusal_that_is_not_stored_is_raised_alike(execute: Callable[[Command], object]) -> None:
    with pytest.raises(Sealed, match="it is sealed"):
        execute(SEALED)


def test_another_version_is_raised_as_a_version_mismatch() -> None:
    with pytest.raises(VersionMismatch) as caught:
        execute_command(DEAR, expected_version=3)
    assert (caught.value.expected_version, caught.value.version) == (3, 0)


@both_forms
def test_an_error_in_code_is_raised_as_command_failed(execute: Callable[[Command], object]) -> None:
    with pytest.raises(CommandFailed) as caught:
        execute(BURST)
    error = caught.value
    assert str(error) == "command 'p2' for 'ada' failed: ZeroDivisionError: the purse burst"
    assert (error.command_id, error.aggregate_root_id) == ("p2", "ada")
    assert (error.error_type, error.error_message) == ("ZeroDivisionError", "the purse burst")
    assert (error.result.status, error.retriable) == (CommandStatus.FAILED, False)


def test_try_command_returns_the_result_as_a_value() -> None:
    assert try_command(DEAR) == asyncio.run(atry_command(DEAR))
    assert [try_command(one).status for one in (DEAR, SEALED, BURST)] == [
        CommandStatus.REFUSED,
        CommandStatus.REFUSED,
        CommandStatus.FAILED,
    ]
    with pytest.raises(TooDear):
        try_command(DEAR).raise_for_status()
    assert failure("c", "a", ValueError()).error is not None


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("command", [DEAR, BURST], ids=["refused", "failed"])
def test_a_copy_has_everything_that_the_exception_has(again: Callable[[Any], Any], command: Command) -> None:
    error: Any = try_command(command).error
    error.add_note("while paying")
    copied = again(error)
    assert (type(copied), str(copied), copied.__notes__) == (type(error), str(error), ["while paying"])
    assert (copied.result, copied.command_id) == (error.result, command.id)
    assert getattr(copied, "missing", None) == getattr(error, "missing", None)


def test_what_is_raised_does_not_hold_itself() -> None:
    def caught() -> weakref.ref[DomainException]:
        try:
            execute_command(Pay("a", amount=Decimal(5)))
        except DomainException as refusal:
            return weakref.ref(refusal)
        raise AssertionError("it was not refused")

    gc.collect()
    gc.disable()
    try:
        assert caught()() is None
    finally:
        gc.enable()


def test_it_can_be_the_cause_of_another_exception() -> None:
    def buy() -> None:
        try:
            execute_command(DEAR)
        except DomainException as refusal:
            raise LookupError("buy less") from refusal

    with pytest.raises(LookupError) as caught:
        buy()
    text = "".join(traceback.format_exception(caught.value))
    assert "TooDear: too dear" in text
    assert "direct cause" in text


# -- refusals that are not as their classes here -----------------------------------------------------------------------


def _refused(error_type: str, fields: dict[str, Any]) -> CommandResult:
    return CommandResult(
        status=CommandStatus.REFUSED,
        command_id="c",
        aggregate_root_id="a",
        error_type=error_type,
        error_message="no",
        error_fields=fields,
    )


@pytest.mark.parametrize(
    "result",
    [_refused("elsewhere.Unknown", {"missing": "1"}), _refused("raised.TooDear", {"missing": []})],
    ids=["no such class", "other fields"],
)
def test_a_refusal_that_cannot_be_restored_is_raised_as_an_unknown_one(result: CommandResult) -> None:
    with pytest.raises(UnknownRefusal, match=r"^no$") as caught:
        result.raise_for_status()
    assert caught.value.result is result
    assert pickle.loads(pickle.dumps(caught.value)).result == result


def _row(events: bytes) -> StreamRecord:
    return StreamRecord("ada", None, "c", "raised.Purse", "raised.Pay", datetime.now(UTC), events, b"")


def test_a_refusal_of_an_older_schema_version_is_raised_as_its_class_is_now() -> None:
    stored = REFUSAL + pack(("raised.TooDear", 1, "too dear", {"cents": 150, "currency": "EUR"}))
    error = decode_result(encode_result(stored_result(_row(stored)))).error
    assert isinstance(error, TooDear)
    assert (error.missing, error.currency) == (Decimal("1.5"), "EUR")


@pytest.mark.parametrize(("name", "fields"), [("raised.TooDear", {}), ("raised.Locked", {"key": "a"})])
def test_a_refusal_that_cannot_be_upcast_keeps_what_is_stored(name: str, fields: dict[str, Any]) -> None:
    stored = REFUSAL + pack((name, 1, "no", fields))
    result = decode_result(encode_result(stored_result(_row(stored))))
    assert (result.status, result.error_fields) == (CommandStatus.REFUSED, fields)
    assert isinstance(result.error, UnknownRefusal)


def test_a_crash_that_is_stored_for_its_process_manager_is_a_failure() -> None:
    crash = CommandCrashed.of(BURST, ZeroDivisionError("burst"), sender="unit.payer", body=b"secret")
    result = stored_result(_row(encode_refusal(crash)))
    assert (result.status, result.error_type, result.error_fields) == (CommandStatus.FAILED, "ZeroDivisionError", {})
    with pytest.raises(CommandFailed, match="ZeroDivisionError: burst"):
        result.raise_for_status()


# -- answers as they travel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_type", ["raised.TooDear", "elsewhere.Unknown", "Sealed"])
def test_a_refusal_arrives_as_it_was_sent(error_type: str) -> None:
    result = _refused(error_type, {"missing": "1"})
    assert unpack(encode_result(result).removeprefix(ANSWER))[0] == "refused"
    assert decode_result(encode_result(result)) == result


def test_the_failure_of_a_class_with_a_dot_in_its_name_stays_a_failure() -> None:
    error = type("vendor.Fault", (Exception,), {})("text")
    result = failure("c", "a", error)
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "Fault")
    assert decode_result(encode_result(result)) == result


def test_a_domain_exception_has_no_field_of_this_name() -> None:
    with pytest.raises(DefinitionError, match="'result', which every DomainException has already"):

        class WithResult(DomainException):
            result: int
