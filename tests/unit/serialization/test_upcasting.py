from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from enode_django.domain.messages import Command, DomainEvent, EventStamp
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import DefinitionError, InvalidField, MalformedMessage, UnknownMessageType
from enode_django.serialization.codec import (
    StoredEvent,
    StoredRefusal,
    decode_command,
    decode_events,
    decode_refusal,
    restore_command,
    restore_event,
)
from enode_django.serialization.plain import pack
from enode_django.serialization.upcasting import Fields, UpcasterTable, upcasters, upcasts


class Moved(DomainEvent):
    """Version 1 had ``x`` and ``y`` as texts, version 2 a list ``at``."""

    type_name = "upcasting.Moved"
    schema_version = 3
    at: list[int]
    speed: int = 1


class MovedFar(Moved):
    type_name = "upcasting.MovedFar"


class MovedBack(Moved):
    type_name = "upcasting.MovedBack"
    schema_version = 3


@upcasts(Moved, from_version=1)
def joined(fields: Fields) -> Fields:
    return {"at": [fields["x"], fields["y"]]}


@upcasts(Moved, from_version=2)
def counted(fields: Fields) -> Fields:
    fields["at"] = [int(each) for each in fields["at"]]
    return fields


class Halted(DomainException):
    type_name = "upcasting.Halted"
    schema_version = 2
    reason: str


class Halt(Command):
    type_name = "upcasting.Halt"
    schema_version = 2
    reason: str


@upcasts(Halted, from_version=1)
@upcasts(Halt, from_version=1)
def with_reason(fields: Fields) -> Fields:
    return {"reason": fields.pop("why"), **fields}


def test_event_passes_every_step_from_its_version_on() -> None:
    assert restore_event(StoredEvent("upcasting.Moved", 1, {"x": "1", "y": "2"})) == Moved(at=[1, 2])
    assert restore_event(StoredEvent("upcasting.Moved", 2, {"at": ["1"], "speed": 5})) == Moved(at=[1], speed=5)
    assert restore_event(StoredEvent("upcasting.Moved", 3, {"at": [1], "speed": 5})) == Moved(at=[1], speed=5)


def test_events_of_one_stream_may_have_different_versions() -> None:
    stored = b"\x01" + pack(
        ([("upcasting.Moved", 3, {"at": [0], "speed": 2}), ("upcasting.Moved", 1, {"x": "1", "y": "2"})], None)
    )
    events = decode_events(stored, EventStamp("a", 1, datetime.now(UTC)))
    assert events == [Moved(at=[0], speed=2), Moved(at=[1, 2])]
    assert [event.id for event in events] == ["a/1/0", "a/1/1"]


def test_refusals_and_commands_are_upcast_too() -> None:
    refusal = decode_refusal(StoredRefusal("upcasting.Halted", 1, "no", {"why": "tired"}))
    assert isinstance(refusal, Halted)
    assert (refusal.message, refusal.reason) == ("no", "tired")
    waiting = pack((1, "upcasting.Halt", "c", "a", {"why": "tired"}, b"", ""))
    assert restore_command(decode_command(waiting)) == Halt("a", id="c", reason="tired")


def test_upcaster_may_change_what_it_gets_without_changing_what_is_stored() -> None:
    stored: dict[str, Any] = {"at": ["1", "2"], "speed": 1}
    for _ in range(2):
        assert restore_event(StoredEvent("upcasting.Moved", 2, stored)) == Moved(at=[1, 2])
    assert stored == {"at": ["1", "2"], "speed": 1}

    class Nested(DomainEvent):
        type_name = "upcasting.Nested"
        schema_version = 2
        of: dict[str, list[int]]

    @upcasts(Nested, from_version=1)
    def emptied(fields: Fields) -> Fields:
        fields["of"]["a"].append(2)
        return fields

    deep = {"of": {"a": [1]}}
    assert restore_event(StoredEvent("upcasting.Nested", 1, deep)) == Nested(of={"a": [1, 2]})
    assert deep == {"of": {"a": [1]}}


def test_what_one_upcaster_returns_is_not_changed_by_the_next(undeclared: None) -> None:
    class Constant(DomainEvent):
        type_name = "upcasting.Constant"
        schema_version = 3
        n: int

    shared = {"n": 1}
    table = UpcasterTable()
    table.add(Constant, 1, lambda fields: shared)
    table.add(Constant, 2, lambda fields: fields | {"n": fields.pop("n") + 1})
    assert [table.upcast(Constant, "upcasting.Constant", 1, {})["n"] for _ in range(2)] == [2, 2]
    assert shared == {"n": 1}


def test_step_without_an_upcaster_lets_the_fields_pass(undeclared: None) -> None:
    class Gapped(DomainEvent):
        type_name = "upcasting.Gapped"
        schema_version = 4
        n: int
        more: str = "default"

    @upcasts(Gapped, from_version=2)
    def doubled(fields: Fields) -> Fields:
        return {**fields, "n": fields["n"] * 2}

    assert restore_event(StoredEvent("upcasting.Gapped", 1, {"n": 1, "gone": 1})) == Gapped(n=2)
    assert restore_event(StoredEvent("upcasting.Gapped", 3, {"n": 1})) == Gapped(n=1)


def test_upcaster_that_is_defined_late_counts_from_then_on(undeclared: None) -> None:
    class Late(DomainEvent):
        type_name = "upcasting.Late"
        schema_version = 2
        n: int

    assert restore_event(StoredEvent("upcasting.Late", 1, {"n": 1})) == Late(n=1)
    upcasts(Late, from_version=1)(lambda fields: {"n": fields["n"] + 1})
    assert restore_event(StoredEvent("upcasting.Late", 1, {"n": 1})) == Late(n=2)


def test_an_event_whose_fields_do_not_fit_is_malformed_and_says_what_to_do(undeclared: None) -> None:
    class Lent(DomainEvent):
        type_name = "upcasting.Lent"
        schema_version = 2
        due_days: int

    stamp = EventStamp("book-1", 7, datetime.now(UTC))
    old = b"\x01" + pack(([("upcasting.Lent", 1, {"days": 3})], None))
    with pytest.raises(
        MalformedMessage,
        match=r"^'upcasting\.Lent' of schema version 1, in version 7 of aggregate 'book-1', cannot be read: .*Lent\."
        r"due_days is missing; write an upcaster, @upcasts\(.*Lent, from_version=1\)$",
    ):
        decode_events(old, stamp)
    with pytest.raises(MalformedMessage, match=r"expected int.* raise schema_version to 3 and write an upcaster"):
        restore_event(StoredEvent("upcasting.Lent", 2, {"due_days": "three"}))


def test_an_event_whose_upcaster_returns_what_does_not_fit_asks_to_correct_that_one(undeclared: None) -> None:
    class Lent(DomainEvent):
        type_name = "upcasting.Lent"
        schema_version = 3
        due_days: int

    upcasts(Lent, from_version=1)(lambda fields: {"due": fields["days"]})
    upcasts(Lent, from_version=2)(lambda fields: fields)
    with pytest.raises(
        MalformedMessage, match=r"due_days is missing; correct the upcasters of .*Lent, from version 1 on$"
    ):
        restore_event(StoredEvent("upcasting.Lent", 1, {"days": 3}))
    upcasters.remove(Lent, 1)
    with pytest.raises(MalformedMessage, match=r"write an upcaster, @upcasts\(.*Lent, from_version=1\)$"):
        restore_event(StoredEvent("upcasting.Lent", 1, {"days": 3}))


def test_a_command_that_waited_during_a_change_of_its_fields_says_what_to_do() -> None:
    from_before = pack((1, "upcasting.Halt", "c", "a", {"cause": "tired"}, b"", "", Halt.schema_version))
    with pytest.raises(
        InvalidField, match=r"Halt has no field 'cause'; .* raise schema_version to 3 and write an upcaste"
    ):
        restore_command(decode_command(from_before))


def test_a_refusal_whose_fields_do_not_fit_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match=r"Halted\.reason is missing; raise schema_version to 3"):
        decode_refusal(StoredRefusal("upcasting.Halted", 2, "no", {}))


def test_subclass_inherits_the_upcasters_with_the_version_and_without_it_none() -> None:
    assert restore_event(StoredEvent("upcasting.MovedFar", 1, {"x": "1", "y": "2"})) == MovedFar(at=[1, 2])
    assert list(upcasters.of(MovedFar)) == [1, 2]
    with pytest.raises(MalformedMessage, match=r"MovedBack\.at is missing"):
        restore_event(StoredEvent("upcasting.MovedBack", 1, {"x": "1", "y": "2"}))
    assert upcasters.of(MovedBack) == {}


def test_subclass_may_have_an_upcaster_of_its_own_for_a_step(undeclared: None) -> None:
    class MovedUp(Moved):
        type_name = "upcasting.MovedUp"

    @upcasts(MovedUp, from_version=1)
    def otherwise(fields: Fields) -> Fields:
        return {"at": ["7"]}

    assert restore_event(StoredEvent("upcasting.MovedUp", 1, {"x": "1", "y": "2"})) == MovedUp(at=[7])
    assert restore_event(StoredEvent("upcasting.Moved", 1, {"x": "1", "y": "2"})) == Moved(at=[1, 2])


def test_event_of_the_current_version_meets_no_upcaster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(UpcasterTable, "upcast")
    assert restore_event(StoredEvent("upcasting.Moved", 3, {"at": [1]})) == Moved(at=[1])
    with pytest.raises(MalformedMessage):
        restore_event(StoredEvent("upcasting.Moved", 2, {"at": ["1"]}))


RESTORING: list[Callable[[], object]] = [
    lambda: restore_event(StoredEvent("upcasting.Moved", 1, {})),
    lambda: decode_refusal(StoredRefusal("upcasting.Halted", 1, "no", {})),
    lambda: restore_command(decode_command(pack((1, "upcasting.Halt", "c", "a", {}, b"", "")))),
]


@pytest.mark.parametrize("restore", RESTORING, ids=["event", "refusal", "command"])
def test_what_an_upcaster_raises_names_type_version_and_cause(restore: Callable[[], object]) -> None:
    with pytest.raises(
        MalformedMessage,
        match=r"'upcasting\.\w+' of schema version 1 .*test_upcasting\.\w+\(\), from 1, raised KeyError",
    ) as caught:
        restore()
    assert isinstance(caught.value.__cause__, KeyError)
    assert not caught.value.retriable


@pytest.mark.parametrize("raised", [UnknownMessageType("x"), InvalidField("x"), ValueError("\udc00"), RecursionError()])
def test_whatever_an_upcaster_raises_is_not_tried_again(undeclared: None, raised: Exception) -> None:
    class Broken(DomainEvent):
        type_name = "upcasting.Broken"
        schema_version = 2

    @upcasts(Broken, from_version=1)
    def fails(fields: Fields) -> Fields:
        raise raised

    with pytest.raises(MalformedMessage) as caught:
        restore_event(StoredEvent("upcasting.Broken", 1, {}))
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("returned", [None, [], "fields"])
def test_upcaster_that_returns_no_dict_is_named(undeclared: None, returned: Any) -> None:
    class Forgetful(DomainEvent):
        type_name = "upcasting.Forgetful"
        schema_version = 2

    @upcasts(Forgetful, from_version=1)
    def forgets(fields: Fields) -> Fields:
        return returned  # type: ignore[no-any-return]

    with pytest.raises(MalformedMessage, match=r"forgets\(\), from 1, returned .*must return the dict of fields"):
        restore_event(StoredEvent("upcasting.Forgetful", 1, {}))


@pytest.mark.parametrize("version", [0, -1, None, "2", 2.5])
def test_strange_schema_version_is_malformed(version: Any) -> None:
    with pytest.raises(MalformedMessage, match=r"schema version .*, which is none"):
        restore_event(StoredEvent("upcasting.Moved", version, {"at": [1]}))


def test_newer_schema_version_is_unknown() -> None:
    for restore in (
        lambda: restore_event(StoredEvent("upcasting.Moved", 4, {})),
        lambda: decode_refusal(StoredRefusal("upcasting.Halted", 3, "", {})),
        lambda: restore_command(decode_command(pack((1, "upcasting.Halt", "c", "a", {}, b"", "", 10**5000)))),
    ):
        with pytest.raises(UnknownMessageType, match="deploy newer code") as caught:
            restore()
        assert caught.value.retriable


@pytest.mark.parametrize(
    ("classes", "from_version", "problem"),
    [
        ((), 1, "names no class"),
        ((int,), 1, "takes classes of events"),
        (("upcasting.Moved",), 1, "takes classes of events"),
        ((Moved,), 0, "whole numbers from 1 on"),
        ((Moved,), True, "whole numbers from 1 on"),
        ((Moved,), "1", "whole numbers from 1 on"),
        ((Moved,), 1.0, "whole numbers from 1 on"),
        ((Moved,), 3, "raise it to 4"),
        ((MovedFar,), 7, "raise it to 8"),
    ],
)
def test_upcaster_that_cannot_be_is_refused(classes: Any, from_version: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        upcasts(*classes, from_version=from_version)


def test_second_upcaster_for_a_step_is_refused_but_not_that_of_a_reloaded_module() -> None:
    with pytest.raises(DefinitionError, match=r"Moved has two upcasters from version 1: .*joined\(\) and .*twice\(\)"):

        @upcasts(Moved, from_version=1)
        def twice(fields: Fields) -> Fields:
            return fields

    assert upcasts(Moved, from_version=1)(joined) is joined


def test_upcaster_is_a_plain_function() -> None:
    async def later(fields: Fields) -> Fields:
        return fields

    with pytest.raises(DefinitionError, match="plain function"):
        upcasts(Moved, from_version=1)(later)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Command, DomainEvent, DomainException])
@pytest.mark.parametrize("version", [0, True, "2", 1.5, None])
def test_schema_version_is_a_whole_number_from_1_on(kind: type, version: Any) -> None:
    with pytest.raises(DefinitionError, match="Odd has schema_version"):
        type("Odd", (kind,), {"schema_version": version, "__module__": __name__})
