"""The API is as its OpenAPI document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
import schemathesis
from django.conf import settings as framework
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from django.test import override_settings
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import spectacular_settings
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from enode_django import execute_command
from enode_django.api.examples import example_of
from enode_django.api.openapi import command_schema, nullable
from enode_django.serialization.json_values import command_from_json, json_fields
from enode_django.testing.inline import InlineCommandBus
from sample_project.bank.domain import OpenAccount
from tests.api.calls import Caller
from tests.api.commands import Ship, Size
from tests.api.conftest import MakeCaller

pytestmark = pytest.mark.django_db

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = {
    ("post", "/api/commands/"),
    ("get", "/api/commands/{id}/"),
    ("get", "/api/aggregates/{type}/{id}/"),
    ("get", "/api/aggregates/{type}/{id}/events/"),
    ("get", "/api/events/"),
    ("get", "/api/events/stream/"),
}
EXAMPLES = {"post": 6, "get": 3}
SAMPLES_COMMANDS = {"bank.*": ["enode_django.send_command"], "notes.*": ["enode_django.send_command"], "*": []}
SAMPLES = (  # those that open an aggregate first
    *("bank.OpenAccount", "bank.StartTransfer", "notes.CreateNote"),
    *("bank.CloseAccount", "bank.Deposit", "bank.Withdraw", "notes.ChangeTitle", "notes.DeleteNote"),
)
API = {"COMMANDS": {**SAMPLES_COMMANDS, "api.Track": [], "api.Own": []}, "STREAM_SECONDS": 0.001}


def test_the_document_is_valid_and_made_without_a_warning() -> None:
    out = StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, format="openapi-json", stdout=out)
    document = json.loads(out.getvalue())
    found = {(method, path) for path, item in document["paths"].items() for method in item}
    assert found >= OPERATIONS


def document() -> Any:
    return SchemaGenerator().get_schema(public=True)


def test_every_operation_has_a_summary() -> None:
    operations = [operation for item in document()["paths"].values() for operation in item.values()]
    assert [operation["operationId"] for operation in operations if not operation.get("summary")] == []


@override_settings(ENODE={"API": {"MAX_TIMEOUT": 7.0}})
def test_the_longest_timeout_is_that_of_the_settings() -> None:
    parameters = document()["paths"]["/api/commands/"]["post"]["parameters"]
    (timeout,) = (each["schema"] for each in parameters if each["name"] == "timeout")
    assert timeout["maximum"] == 7.0


@override_settings(ENODE={"API": API})
def test_each_example_is_accepted_as_it_stands_and_the_first_one_takes_effect(
    caller: MakeCaller, bus: InlineCommandBus
) -> None:
    examples = document()["paths"]["/api/commands/"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    bodies = [example["value"] for example in examples.values()]
    names = [body["type"] for body in bodies]
    assert [name for name in names if name in SAMPLES] == [*SAMPLES]
    sender = caller("send_command")
    opening = next(body for body in bodies if body["type"] == "bank.OpenAccount")
    answer = sender.post(json.dumps(opening), "?wait=executed")
    assert (answer.status_code, answer.json()["event_types"]) == (200, ["bank.AccountOpened"])
    sent = [sender.post(json.dumps(body)) for body in bodies if body["type"] in SAMPLES]
    assert [answer.status_code for answer in sent] == [202] * len(SAMPLES)


def test_an_example_has_a_value_of_every_type() -> None:
    schema = json_fields(Ship).schema
    everything = example_of({**schema, "required": list(schema["properties"])})
    command = command_from_json(Ship, "a", everything)
    assert (command.weight, command.day, command.size) == (Decimal("10.00"), date(2030, 1, 31), Size.SMALL)
    assert example_of({"type": "integer", "minimum": 5, "maximum": 9}) == 5
    assert example_of({"type": "integer", "exclusiveMinimum": 3}) == 4
    assert example_of({"type": "integer", "maximum": -2}) == -2
    assert example_of({"type": "string", "minLength": 6}) == "textxx"
    assert example_of({"type": "array", "items": {"type": "boolean"}, "minItems": 2}) == [True, True]


def test_each_command_is_a_component_of_its_own() -> None:
    schemas = SchemaGenerator().get_schema(public=True)["components"]["schemas"]
    assert schemas["bank.Deposit"]["properties"]["fields"]["properties"]["amount"]["format"] == "decimal"
    assert schemas["bank.CloseAccount"]["required"] == ["type", "aggregate_root_id"]
    assert schemas["notes.CreateNote"]["properties"]["fields"]["required"] == ["title"]
    one_of = schemas["AnyCommand"]
    assert one_of["discriminator"]["mapping"]["bank.Deposit"] == "#/components/schemas/bank.Deposit"
    assert {"$ref": "#/components/schemas/bank.Deposit"} in one_of["oneOf"]
    assert not {"api.Internal", "api.Unhandled"} & schemas.keys()


def test_fields_of_every_type_have_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    older = command_schema("api.Ship", Ship)
    assert older["description"] == "A command with a field of every type."
    fields = older["properties"]["fields"]["properties"]
    assert fields["at"] == {"type": "string", "format": "date-time", "nullable": True}
    assert fields["size"] == {"enum": [1, 2], "type": "integer"}
    assert fields["rates"]["additionalProperties"]["format"] == "decimal"
    assert fields["tags"] == {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert fields["to"]["required"] == ["x"]
    monkeypatch.setattr(spectacular_settings, "OAS_VERSION", "3.1.1", raising=False)
    newer = command_schema("api.Ship", Ship)["properties"]["fields"]["properties"]
    assert newer["at"] == {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}


def test_schemas_are_told_as_the_older_openapi_has_them() -> None:
    assert nullable({"type": "null"}) == {"enum": [None], "nullable": True}
    assert nullable({"enum": ["a", None]}) == {"enum": ["a", None], "nullable": True}
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "minItems": 2, "maxItems": 2}
    assert nullable(pair)["items"] == {"anyOf": [{"type": "string"}, {"enum": [None], "nullable": True}]}


def test_the_document_is_for_those_who_are_logged_in(caller: MakeCaller, client: Any) -> None:
    assert client.get("/api/schema/").status_code == 403
    assert client.get("/api/docs/").status_code == 403
    clerk = caller().client
    assert b"bank.Deposit" in clerk.get("/api/schema/").content
    page = clerk.get("/api/docs/").content.decode()
    assert "swagger" in page
    assert "//cdn" not in page


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Requests leave the test's connection open, as Django's own client sees to."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def known(one_connection: None, caller: MakeCaller, bus: InlineCommandBus) -> Caller:
    execute_command(OpenAccount("0", owner="Ada", id="0"))
    return caller("send_command", "view_eventstream", "view_payload")


@override_settings(ENODE={"API": API}, REST_FRAMEWORK={**framework.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": {}})
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whatever_comes_is_answered_as_the_document_says(known: Caller, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(SchemaGenerator().get_schema(public=True))
    schema.app = get_wsgi_application()
    session = known.client.cookies["sessionid"].value
    token = "a" * 32
    seen = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        method = operation.method.lower()
        if (method, operation.full_path) not in OPERATIONS:
            continue

        @seed(20_260_131)
        @settings(max_examples=EXAMPLES[method], deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(mode))
        def answers(case: Any) -> None:
            case.call_and_validate(
                checks=CHECKS,
                headers={"X-CSRFToken": token},
                cookies={"sessionid": session, "csrftoken": token},
            )

        answers()
        seen.add((method, operation.full_path))
    assert seen == OPERATIONS


def test_times_in_answers_name_their_offset(known: Caller) -> None:
    (row,) = known.get("aggregates/bank.BankAccount/0/events/").json()["results"]
    assert datetime.fromisoformat(row["created_at"]).tzinfo == UTC
