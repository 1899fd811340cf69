"""Describe the API for drf-spectacular, with a component for each class of commands."""

# mypy: allow-untyped-calls

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension, OpenApiViewExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers

from enode_django.api.commands import WAITS
from enode_django.api.examples import command_examples
from enode_django.api.exposure import all_offered
from enode_django.api.problems import CONTENT_TYPE
from enode_django.conf import conf
from enode_django.domain.messages import Command
from enode_django.ids import MAX_ID_LENGTH
from enode_django.serialization.json_values import json_fields

ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH}


# -- commands ---------------------------------------------------------------------------------------------------------


class AnyCommand(serializers.Serializer[Any]):
    """Stands for the commands that the API accepts."""


class _AnyCommand(OpenApiSerializerExtension):
    target_class = AnyCommand

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        mapping = {}
        for name, found in all_offered():
            component = ResolvedComponent(
                name=re.sub(r"[^A-Za-z0-9._-]", "_", name),
                type=ResolvedComponent.SCHEMA,
                schema=command_schema(name, found.cls),
                object=found.cls,
            )
            auto_schema.registry.register_on_missing(component)
            mapping[name] = component.ref["$ref"]
        if not mapping:
            return {"type": "object"}
        refs = [{"$ref": ref} for ref in mapping.values()]
        return {"oneOf": refs, "discriminator": {"propertyName": "type", "mapping": mapping}}


def command_schema(name: str, cls: type[Command]) -> dict[str, Any]:
    fields = json_fields(cls)
    required = ["type", "aggregate_root_id", *(["fields"] if fields.required else [])]
    schema = {
        "type": "object",
        "properties": {
            # An enum with one value would become a component of its own.
            "type": {"type": "string", "pattern": f"^{re.escape(name)}$", "example": name},
            "aggregate_root_id": ID,
            "fields": fields.schema if is_newer() else nullable(fields.schema),
        },
        "required": required,
        "additionalProperties": False,
    }
    text = inspect.getdoc(cls) if cls.__dict__.get("__doc__") else None
    # The docstring of a dataclass without one is its signature.
    return schema | ({"description": text} if text and not text.startswith(f"{cls.__name__}(") else {})


def is_newer() -> bool:
    return not spectacular_settings.OAS_VERSION.startswith("3.0")


def nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema in OpenAPI 3.0: null is written as ``nullable``, an array has one schema of items, and an
    exclusive bound is a flag beside the inclusive one.

    >>> nullable({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    {'type': 'integer', 'nullable': True}
    """
    if "anyOf" in schema:
        return {**nullable(schema["anyOf"][0]), "nullable": True}
    if schema.get("type") == "null":
        return {"enum": [None], "nullable": True}
    found = dict(schema)
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            found |= {inclusive: schema[exclusive], exclusive: True}
    if None in schema.get("enum", ()):
        found["nullable"] = True
    if schema.get("type") == "array":
        kinds = [nullable(each) for each in found.pop("prefixItems", ())]
        found["items"] = {"anyOf": kinds} if kinds else nullable(schema.get("items", {}))
    if "properties" in schema:
        found["properties"] = {name: nullable(each) for name, each in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = nullable(schema["additionalProperties"])
    return found


# -- responses --------------------------------------------------------------------------------------------------------


class WrongPart(serializers.Serializer[Any]):
    pointer = serializers.CharField(required=False, help_text="A JSON pointer into the body.")
    parameter = serializers.CharField(required=False, help_text="The name of a query parameter or header.")
    detail = serializers.CharField()


class ProblemDetails(serializers.Serializer[Any]):
    """RFC 9457. A domain exception's fields are members, too."""

    type = serializers.CharField(help_text="A URN; about:blank if the status is enough.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(allow_blank=True)
    errors = WrongPart(many=True, required=False)  # type: ignore[assignment]
    command_id = serializers.CharField(required=False)
    aggregate_root_id = serializers.CharField(required=False)
    stored = serializers.BooleanField(required=False, allow_null=True, help_text="After a timeout: null if not known.")
    missing = serializers.ListField(child=serializers.CharField(), required=False, help_text="Missing subscribers.")


class Sent(serializers.Serializer[Any]):
    id = serializers.CharField()
    aggregate_root_id = serializers.CharField()
    status = serializers.CharField(help_text="sent")


class Outcome(serializers.Serializer[Any]):
    id = serializers.CharField()
    aggregate_root_id = serializers.CharField()
    status = serializers.CharField(help_text="success or nothing_changed")
    version = serializers.IntegerField(allow_null=True)
    value = serializers.JSONField(help_text="What the handler set as the result.")
    event_types = serializers.ListField(child=serializers.CharField())
    parked = serializers.ListField(child=serializers.CharField(), help_text="Subscribers that could not handle it.")


class StoredOutcome(serializers.Serializer[Any]):
    id = serializers.CharField()
    aggregate_root_id = serializers.CharField(required=False)
    status = serializers.CharField(help_text="pending, success, refused or failed")
    version = serializers.IntegerField(required=False, allow_null=True)
    value = serializers.JSONField(required=False)
    event_types = serializers.ListField(child=serializers.CharField(), required=False)
    problem = ProblemDetails(required=False)


class State(serializers.Serializer[Any]):
    aggregate_root_type = serializers.CharField()
    aggregate_root_id = serializers.CharField()
    version = serializers.IntegerField()
    state = serializers.JSONField()


class Stream(serializers.Serializer[Any]):
    """The events of one command on one aggregate. Without the permission to view payloads it has no events."""

    aggregate_root_type = serializers.CharField(allow_blank=True)
    aggregate_root_id = serializers.CharField()
    version = serializers.IntegerField(allow_null=True, help_text="Null for a refusal.")
    command_id = serializers.CharField()
    command_type = serializers.CharField()
    created_at = serializers.DateTimeField()
    events = serializers.ListField(child=serializers.DictField(), required=False)
    result = serializers.JSONField(required=False)
    sent = serializers.ListField(child=serializers.DictField(), required=False)
    refusal = serializers.DictField(required=False)
    metadata = serializers.DictField(required=False)
    unreadable = serializers.CharField(required=False)


class FeedStream(Stream):
    cursor = serializers.CharField()


class History(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    results = Stream(many=True)
    after = serializers.IntegerField(help_text="Give this for the next page.")
    more = serializers.BooleanField()


class FeedPage(serializers.Serializer[Any]):
    results = FeedStream(many=True)
    cursor = serializers.CharField(allow_blank=True, help_text="Give this for the next page.")
    more = serializers.BooleanField()


def _answers(answers: Mapping[Any, Any], *problems: int) -> dict[Any, Any]:
    return {
        **answers,
        **{(status, CONTENT_TYPE): ProblemDetails for status in (*problems, 401, 403, 404, 406, 429, 503)},
    }


# -- views ------------------------------------------------------------------------------------------------------------


def _query(name: str, type: Any, description: str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, type, OpenApiParameter.QUERY, description=description, **more)


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=description)


_ID = OpenApiParameter("id", ID, OpenApiParameter.PATH)
_TYPE = OpenApiParameter("type", ID, OpenApiParameter.PATH, description="The stored name of the class of aggregates.")
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 10**18}
_LIMIT = _query("limit", _COUNT, "The largest number of results. A page has at most 500.")
_CURSOR = _query("cursor", str, "The cursor of a page or an event, to go on after it.")


class _View(OpenApiViewExtension):
    """Describe one HTTP method of a view, which ``method`` names, by the arguments of `extend_schema`."""

    method = "get"
    described: Mapping[str, Any]

    def options(self) -> Mapping[str, Any]:
        return self.described

    def view_replacement(self) -> Any:
        described = extend_schema(tags=["enode"], **self.options())(getattr(self.target, self.method))
        return type(self.target.__name__, (self.target,), {self.method: described})


class _Commands(_View):
    target_class = "enode_django.api.commands.CommandsView"
    method = "post"

    def options(self) -> Mapping[str, Any]:
        timeout = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": conf().API.MAX_TIMEOUT}
        if is_newer():
            timeout |= {"exclusiveMinimum": 0}
        return {
            "operation_id": "send_command",
            "summary": "Send a command",
            "request": {"application/json": AnyCommand},
            "parameters": [
                _query("wait", str, "What to wait for.", enum=list(WAITS), default="none"),
                _query("timeout", timeout, "In seconds."),
                _header("Idempotency-Key", "A user's requests with the same key and body take effect once."),
                _header("If-Match", "The version that the aggregate must have, as its ETag."),
            ],
            "examples": [
                OpenApiExample(name, value=body, request_only=True, media_type="application/json")
                for name, body in command_examples()
            ],
            "responses": _answers({200: Outcome, 202: Sent}, 400, 409, 412, 413, 415, 422, 500, 504),
        }


class _Command(_View):
    target_class = "enode_django.api.commands.CommandView"
    described = {
        "operation_id": "get_command",
        "summary": "The outcome of a command",
        "parameters": [_ID, _query("aggregate_root_id", str, "If the same id was used for several aggregates.")],
        "responses": _answers({200: StoredOutcome}, 409),
    }


class _Aggregate(_View):
    target_class = "enode_django.api.aggregates.AggregateView"
    described = {
        "operation_id": "get_aggregate",
        "summary": "The state of an aggregate",
        "parameters": [
            _TYPE,
            _ID,
            _query("version", _COUNT, "The state at this version."),
            _header("If-None-Match", "The ETag of a known version."),
        ],
        "responses": _answers({200: State, 304: None}, 400, 409),
    }


class _AggregateEvents(_View):
    target_class = "enode_django.api.aggregates.AggregateEventsView"
    described = {
        "operation_id": "list_aggregate_events",
        "summary": "The events of an aggregate",
        "parameters": [_TYPE, _ID, _query("after", _NUMBER, "Only later versions."), _LIMIT],
        "responses": _answers({200: History}, 400),
    }


class _Feed(_View):
    target_class = "enode_django.api.aggregates.FeedView"
    described = {
        "operation_id": "list_events",
        "summary": "All events, in one order",
        "parameters": [_CURSOR, _LIMIT],
        "responses": _answers({200: FeedPage}, 400),
    }


class _Stream(_View):
    target_class = "enode_django.api.sse.EventStreamView"
    described = {
        "operation_id": "stream_events",
        "summary": "New events as they come, as server-sent events",
        "parameters": [_CURSOR, _header("Last-Event-ID", "The id of the last event that was received.")],
        "responses": _answers({(200, "text/event-stream"): OpenApiTypes.STR}, 400),
    }
