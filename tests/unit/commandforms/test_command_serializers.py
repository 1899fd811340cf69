from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.http import QueryDict
from django.test import RequestFactory
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.validation import validate_schema
from rest_framework import serializers
from rest_framework.exceptions import APIException, NotFound
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request

from enode_django import Command, CommandResult, CommandStatus, execute_command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandTimeout, DefinitionError, StoreUnavailable, TransportUnavailable
from enode_django.runtime import use_bus
from enode_django.serializers import (
    CommandLate,
    CommandRefused,
    CommandResultSerializer,
    CommandSerializer,
    PreconditionFailed,
    PreconditionRequired,
    QueueUnreachable,
    error_of,
    etag_of,
    expected_version_of,
)
from enode_django.testing import inline
from enode_django.testing.inline import InlineCommandBus
from tests.unit.commandforms.domain import Everything, Fill, Mood, Optional, Take
from tests.unit.commandforms.test_form_fields import KEY, VALUES

JSON: dict[str, Any] = {
    "flag": True,
    "number": -12,
    "ratio": 0.5,
    "text": "hé <b>",
    "amount": "12.50",
    "moment": "2026-01-31T12:00:00Z",
    "day": "2026-01-31",
    "key": KEY,
    "blob": "YWI=",
    "metal": 2,
    "mood": "b",
    "sizes": [{"width": 2}, {"width": 3, "height": 4}],
    "tags": ["a", "b"],
    "rates": {"eur": "1.10"},
    "pair": [1, "x"],
    "noted": "n",
}


def serializer_of(command: type[Command], **meta: Any) -> type[CommandSerializer]:
    return type("Made", (CommandSerializer,), {"Meta": type("Meta", (), {"command": command, **meta})})


Takes = serializer_of(Take)


@pytest.fixture
def bus() -> Iterator[InlineCommandBus]:
    with inline(MemoryEventStore()) as bus:
        execute_command(Fill("jar", coins=10))
        yield bus


def valid(cls: type[CommandSerializer], data: Any) -> CommandSerializer:
    serializer = cls(data=data)
    serializer.is_valid(raise_exception=True)
    return serializer


def test_every_type_of_field_arrives() -> None:
    command: Any = valid(serializer_of(Everything), JSON).command(aggregate_root_id="a", id="c")
    assert {name: getattr(command, name) for name in VALUES} == VALUES
    assert (command.aggregate_root_id, command.id) == ("a", "c")


def test_every_type_of_field_arrives_from_a_form_of_the_browsable_api() -> None:
    sent = QueryDict(mutable=True)
    texts = {name: value for name, value in JSON.items() if isinstance(value, str)}
    others = {
        "flag": "true",
        "number": "-12",
        "ratio": "0.5",
        "metal": "2",
        "sizes": '[{"width": 2}, {"width": 3, "height": 4}]',
    }
    sent.update({**texts, **others, "tags": '["a", "b"]', "rates": '{"eur": "1.10"}', "pair": '[1, "x"]'})
    command: Any = valid(serializer_of(Everything), sent).command()
    assert {name: getattr(command, name) for name in VALUES} == VALUES


def test_what_is_left_empty_in_a_form_is_none_or_the_default() -> None:
    sent = QueryDict("flag=&number=&text=&metal=&sizes=&amount=&title=&count=&mood=&more=")
    command: Any = valid(serializer_of(Optional), sent).command()
    assert (command.flag, command.number, command.metal, command.sizes, command.amount) == (None,) * 5
    assert (command.text, command.title) == ("", "")
    assert (command.count, command.mood, command.more) == (7, Mood.GOOD, {"a": 1})


def test_what_is_missing_has_its_default_or_is_required() -> None:
    given = {"flag": None, "number": None, "text": None, "metal": None, "sizes": None}
    command: Any = valid(serializer_of(Optional), given).command()
    assert (command.amount, command.title, command.count, command.mood) == (Decimal(3), "untitled", 7, Mood.GOOD)
    missing = serializer_of(Everything)(data={})
    assert not missing.is_valid()
    assert missing.errors.keys() == VALUES.keys()


@pytest.mark.parametrize(
    ("name", "sent", "message"),
    [
        ("flag", "true", "expected true or false, got 'true'"),
        ("number", "1", "expected a whole number, got '1'"),
        ("number", True, "expected a whole number, got True"),
        ("amount", 12.5, "expected a decimal number as a string"),
        ("amount", "NaN", "expected a decimal number as a string"),
        ("text", 5, "expected a string, got 5"),
        ("text", "a\0", "holds a NUL"),
        ("text", None, "This field may not be null."),
        ("metal", 3, "expected one of 1, 2, got 3"),
        ("moment", "2026-01-31T12:00:00", "expected a time with its offset"),
        ("blob", "?", "is no base64"),
        ("sizes", [{"width": "1"}], "0.width: expected a whole number"),
        ("sizes", [{"width": -1}], "0: a width is not negative"),
        ("pair", [1], "expected an array of 2 items"),
    ],
)
def test_what_does_not_fit_is_an_error_of_its_field(name: str, sent: Any, message: str) -> None:
    serializer = serializer_of(Everything)(data={**JSON, name: sent})
    assert not serializer.is_valid()
    assert list(serializer.errors) == [name]
    assert message in str(serializer.errors[name][0])


def test_meta_chooses_fields_and_the_body_replaces_them() -> None:
    class Short(CommandSerializer):
        text = serializers.ChoiceField(["x", "y"])
        sure = serializers.BooleanField()

        class Meta:
            command = Everything
            fields = ("aggregate_root_id", "text", "number")
            extra_kwargs = {"number": {"min_value": 5, "help_text": "at least 5"}}

    serializer = Short(data={"text": "x", "number": 5, "sure": True, "aggregate_root_id": "a"})
    assert serializer.is_valid()
    assert list(serializer.fields) == ["aggregate_root_id", "text", "number", "sure"]
    rest = {name: value for name, value in VALUES.items() if name not in ("text", "number")}
    command: Any = serializer.command(**rest)
    assert (command.aggregate_root_id, command.text, command.number) == ("a", "x", 5)
    assert not Short(data={"text": "z", "number": 4, "sure": True, "aggregate_root_id": "a"}).is_valid()
    with pytest.raises(DefinitionError, match="names 'nothing'"):
        _ = serializer_of(Take, fields=("nothing",))().fields


def test_saving_executes_the_command(bus: InlineCommandBus) -> None:
    serializer = valid(Takes, {"coins": 3})
    result = serializer.save(aggregate_root_id="jar", expected_version=1, id="c")
    assert (result.status, result.version, result.value) == (CommandStatus.SUCCESS, 2, 7)
    assert serializer.data == {
        "status": "success",
        "command_id": "c",
        "aggregate_root_id": "jar",
        "version": 2,
        "value": 7,
    }


@pytest.mark.parametrize(
    ("data", "options", "error", "status", "detail"),
    [
        ({"coins": 11}, {}, CommandRefused, 409, {"coins": ["there are not so many"]}),
        ({"coins": 1, "who": "thief"}, {}, CommandRefused, 409, {"non_field_errors": ["100% <b>locked</b>"]}),
        ({"coins": 1}, {"expected_version": 2}, PreconditionFailed, 412, None),
        ({"coins": 1}, {"aggregate_root_id": "none"}, NotFound, 404, "There is none with this id."),
        ({"coins": 1, "who": "bug"}, {}, APIException, 500, "An error kept this from being done. It took no effect."),
        ({"coins": 1}, {"aggregate_root_id": ""}, serializers.ValidationError, 400, None),
    ],
)
def test_a_failure_is_raised_as_what_the_framework_answers(
    bus: InlineCommandBus, data: Any, options: Any, error: type[APIException], status: int, detail: Any
) -> None:
    with pytest.raises(error) as caught:
        valid(Takes, data).save(**{"aggregate_root_id": "jar", **options})
    assert caught.value.status_code == status
    assert detail is None or caught.value.detail == detail
    assert "secret" not in str(caught.value.detail)


def test_a_refusal_is_a_validation_error_with_the_type_as_its_code(bus: InlineCommandBus) -> None:
    with pytest.raises(serializers.ValidationError) as caught:
        valid(Takes, {"coins": 11}).save(aggregate_root_id="jar")
    assert caught.value.get_codes() == {"coins": ["commandforms.TooFew"]}


@pytest.mark.parametrize(
    ("error_type", "status"),
    [
        ("AggregateAlreadyExists", 409),
        ("AggregateTypeMismatch", 404),
        ("MessageTooLarge", 400),
        ("InvalidField", 400),
        ("InvalidFields", 400),
        ("InvalidId", 400),
        ("KeyError", 500),
    ],
)
def test_other_failures_have_a_status_too(error_type: str, status: int) -> None:
    failed = CommandResult(
        status=CommandStatus.FAILED,
        command_id="c",
        aggregate_root_id="a",
        error_type=error_type,
        error_message="secret",
    )
    assert failed.error is not None
    error = error_of(failed.error)
    assert error.status_code == status
    assert "secret" not in str(error.detail)


class Failing(InlineCommandBus):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def execute(self, *arguments: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("raised", "answered", "status"),
    [
        (CommandTimeout("late"), CommandLate, 504),
        (TransportUnavailable("away"), QueueUnreachable, 503),
        (StoreUnavailable("away"), QueueUnreachable, 503),
    ],
)
def test_what_keeps_a_command_from_being_answered(raised: Exception, answered: type[APIException], status: int) -> None:
    with use_bus(Failing(raised)), pytest.raises(answered) as caught:
        valid(Takes, {"coins": 1}).save(aggregate_root_id="jar")
    assert caught.value.status_code == status


def test_a_result_without_a_version_has_no_etag() -> None:
    assert etag_of(3) == '"3"'
    with pytest.raises(ValueError, match="refused or failed has no version, and so no ETag; call raise_for_status"):
        etag_of(None)


@pytest.mark.parametrize(("header", "version"), [(None, None), ("*", None), ('"0"', 0), (' "12" ', 12)])
def test_the_version_that_was_seen_stands_in_if_match(header: str | None, version: int | None) -> None:
    assert expected_version_of(request_with(header)) == version


@pytest.mark.parametrize("header", ['W/"1"', "1", '"1", "2"', '"-1"', '""', '"' + "9" * 19 + '"', '"١"'])
def test_what_is_no_etag_of_ours_matches_nothing(header: str) -> None:
    with pytest.raises(PreconditionFailed):
        expected_version_of(request_with(header))


def test_a_view_may_ask_for_the_version_that_was_seen() -> None:
    with pytest.raises(PreconditionRequired) as caught:
        expected_version_of(request_with(None), required=True)
    assert caught.value.status_code == 428
    assert expected_version_of(request_with('"1"'), required=True) == 1


def request_with(header: str | None) -> Request:
    return Request(RequestFactory().post("/", headers={} if header is None else {"If-Match": header}))


def test_openapi_shows_the_types() -> None:
    class View(GenericAPIView[Any]):
        schema = AutoSchema()
        serializer_class = serializer_of(Everything)

        def post(self, request: Request) -> None: ...

    whole = SchemaGenerator(patterns=[path("", View.as_view())]).get_schema(request=None, public=True)
    described = whole["components"]["schemas"]["Made"]
    properties = described["properties"]
    assert properties["amount"]["format"] == "decimal"
    assert whole["components"]["schemas"]["MetalEnum"]["enum"] == [1, 2]
    assert properties["sizes"]["items"]["properties"]["height"] == {"type": "integer"}
    assert properties["pair"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert described["required"] == sorted(VALUES)
    validate_schema(whole)


def test_a_command_for_a_stored_aggregate_needs_its_id() -> None:
    serializer = Takes(data={"coins": 3})
    serializer.is_valid(raise_exception=True)
    with pytest.raises(DefinitionError, match=r"Take is for a stored aggregate, .* save\(\)"):
        serializer.save()


@pytest.mark.parametrize("missing", ["aggregate_root_id", "coins"])
def test_a_partial_serializer_asks_for_what_is_neither_sent_nor_given(bus: InlineCommandBus, missing: str) -> None:
    whole = {"aggregate_root_id": "jar", "coins": 3}
    data = {name: value for name, value in whole.items() if name != missing}
    serializer = serializer_of(Take, fields=[*whole])(data=data, partial=True)
    serializer.is_valid(raise_exception=True)
    with pytest.raises(serializers.ValidationError) as caught:
        serializer.save()
    assert caught.value.detail == {missing: ["This field is required."]}
    assert serializer.save(**{missing: whole[missing]}).value == 7


def test_a_list_is_validated_but_not_saved(bus: InlineCommandBus) -> None:
    several = Takes(data=[{"coins": 1}, {"coins": 2}], many=True)
    several.is_valid(raise_exception=True)
    assert several.validated_data == [{"coins": 1}, {"coins": 2}]
    with pytest.raises(DefinitionError, match=r"Made\(many=True\) .* send_commands"):
        several.save(aggregate_root_id="jar")
    assert len(bus.results) == 1


def test_a_result_is_read_with_the_keys_that_it_is_shown_with() -> None:
    result = CommandResult(
        status=CommandStatus.SUCCESS, command_id="c", aggregate_root_id="jar", version=1, value=Decimal("2.50")
    )
    shown = {"status": "success", "command_id": "c", "aggregate_root_id": "jar", "version": 1, "value": "2.50"}
    assert CommandResultSerializer(result).data == shown
    given = CommandResultSerializer(data=shown)
    given.is_valid(raise_exception=True)
    assert given.validated_data == shown
