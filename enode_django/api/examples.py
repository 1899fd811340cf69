"""Example bodies of commands for the OpenAPI document, which the API accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from enode_django.api.exposure import Offered, all_offered
from enode_django.domain.method_handlers import creates
from enode_django.exceptions import EnodeError
from enode_django.serialization.json_values import command_from_json, json_fields

EXAMPLE_ID = "example-1"
BY_FORMAT: Mapping[str, str] = {
    "decimal": "10.00",
    "date": "2030-01-31",
    "date-time": "2030-01-31T12:00:00Z",
    "uuid": "0197c2a1-0000-7000-8000-000000000001",
    "byte": "AAAA",
}


def command_examples() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the type name and the body of each offered command. Commands that create an aggregate come first. A command
    that refuses values which its schema allows is left out."""
    for name, found in sorted(all_offered(), key=_creating_first):
        fields = example_of(json_fields(found.cls).schema)
        try:
            command_from_json(found.cls, EXAMPLE_ID, fields)
        except (EnodeError, ValueError):  # a rule of the command that is not in the schema
            continue
        yield name, {"type": name, "aggregate_root_id": EXAMPLE_ID, **({"fields": fields} if fields else {})}


def _creating_first(offered: tuple[str, Offered]) -> bool:
    return not creates(offered[1].cls)


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return a value for a JSON Schema. Objects have their required members only.

    >>> example_of({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]})
    {'a': 1}
    """
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            return {name: example_of(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [example_of(each) for each in _items(schema)]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "string":
            return _text(schema)
        case _:
            return None


def _items(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 0)


def _number(schema: Mapping[str, Any]) -> Any:
    above = schema.get("exclusiveMinimum")
    lowest = schema.get("minimum", 1 if above is None else above + 1)
    return min(max(1, lowest), schema.get("maximum", max(1, lowest)))


def _text(schema: Mapping[str, Any]) -> str:
    text = BY_FORMAT.get(schema.get("format", ""), "text")
    return text[: schema.get("maxLength", len(text))].ljust(schema.get("minLength", 0), "x")
