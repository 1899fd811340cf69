from __future__ import annotations

import pytest

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import MalformedMessage, TypeNameError, UnknownMessageType
from enode_django.serialization.codec import decode_events, decode_refusal, encode_stream, read_stored
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.registry import TypeRegistry, types

pytestmark = pytest.mark.usefixtures("undeclared")


def test_name_comes_from_the_app_and_the_class() -> None:
    class Sent(Command):
        pass

    registry = TypeRegistry(lambda module: "label" if module == __name__ else None)
    assert registry.name_of(Sent) == "label.Sent"
    assert registry.class_of(Command, "label.Sent") is Sent


def test_name_in_the_body_wins_and_is_not_inherited() -> None:
    class Given(Command):
        type_name = "other.Name"

    class Heir(Given):
        pass

    registry = TypeRegistry(lambda module: "label")
    assert (registry.name_of(Given), registry.name_of(Heir)) == ("other.Name", "label.Heir")


def test_class_outside_any_app_needs_a_name() -> None:
    class Homeless(Command):
        pass

    registry = TypeRegistry()
    with pytest.raises(TypeNameError, match=r'type_name = "some_label.Homeless"'):
        registry.name_of(Homeless)
    assert Homeless in registry.unnamed()
    registry.label_of = lambda module: "late"  # its app is loaded later
    assert registry.class_of(Command, "late.Homeless") is Homeless
    assert Homeless not in registry.unnamed()


def test_kinds_have_names_of_their_own() -> None:
    body = {"type_name": "same.Name", "__module__": __name__}
    classes = [type("Some", (kind,), dict(body)) for kind in (Command, DomainEvent, DomainException, AggregateRoot)]
    registry = TypeRegistry()
    kinds = (Command, DomainEvent, DomainException, AggregateRoot)
    assert [registry.class_of(kind, "same.Name") for kind in kinds] == classes
    assert "same.Name" not in {name for name, _, _ in registry.duplicates()}


def test_two_classes_of_one_name_are_reported_but_a_reloaded_module_is_not() -> None:
    one, again, other = (
        type(name, (Command,), {"type_name": "twice.Name", "__module__": __name__}) for name in ("One", "One", "Other")
    )
    registry = TypeRegistry()
    assert [(name, {a, b}) for name, a, b in registry.duplicates() if name == "twice.Name"] == [
        ("twice.Name", {again, other})
    ]
    assert one is not again


def test_unknown_name_is_retriable_and_says_what_to_look_at() -> None:
    with pytest.raises(UnknownMessageType, match=r"add this name to its aliases; .* INSTALLED_APPS") as caught:
        types.class_of(Command, "no.Such")
    assert caught.value.retriable


def test_class_is_found_as_soon_as_it_is_declared() -> None:
    with pytest.raises(UnknownMessageType):
        types.class_of(Command, "late.Declared")

    class Declared(Command):
        type_name = "late.Declared"

    assert types.class_of(Command, "late.Declared") is Declared


def test_event_and_refusal_of_a_newer_schema_are_not_read() -> None:
    from datetime import UTC, datetime

    from enode_django.domain.messages import EventStamp

    class Versioned(DomainEvent):
        type_name = "unit.Versioned"
        schema_version = 2

    class VersionedRefusal(DomainException):
        type_name = "unit.VersionedRefusal"

    stamp = EventStamp("a", 1, datetime.now(UTC))
    stored = encode_stream([Versioned()])
    assert decode_events(stored, stamp) == [Versioned()]
    newer = b"\x01" + pack(([("unit.Versioned", 3, {})], None))
    with pytest.raises(UnknownMessageType, match="schema version 3, known here is 2"):
        decode_events(newer, stamp)
    refusal = read_stored(b"\x02" + pack(("unit.VersionedRefusal", 2, "no", {})))
    with pytest.raises(UnknownMessageType, match="schema version 2"):
        decode_refusal(refusal)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"\xc7\x01\x09x", b"\xc7\x01\x01x", b"\xc7\x01\x02x", b"\xc7\x02\x03xx", b"\x92\x01"])
def test_bytes_that_pack_cannot_have_made_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack(data)
