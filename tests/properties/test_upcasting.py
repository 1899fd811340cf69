"""Classes whose schemas changed again and again: what was stored at any version is read, if the check finds nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from enode_django.domain.messages import DomainEvent
from enode_django.serialization.codec import StoredEvent, restore_event
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.schema_history import CurrentSchema, RecordedSchema, compare
from enode_django.serialization.schemas import describe
from enode_django.serialization.upcasting import Fields, upcasts

VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(),
    str: st.text(st.characters(codec="utf-8"), max_size=5),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
}
DEFAULTS: dict[type, Any] = {int: 7, str: "default", Decimal: Decimal(7)}
NAMES = ("a", "b", "c", "d")
Schema = Mapping[str, type]
"""Types by field. Those that were added later have a default."""

unique = itertools.count()


@dataclasses.dataclass(frozen=True)
class Step:
    """``upcast`` does to the stored fields what ``change`` does to a schema."""

    kind: str
    name: str = ""
    to: str = ""
    of: type = int

    def change(self, schema: Schema) -> Schema:
        changed = dict(schema)
        if self.kind in ("add", "retype"):
            changed[self.name] = self.of
        elif self.kind == "rename":
            changed[self.to] = changed.pop(self.name)
        elif self.kind == "remove":
            del changed[self.name]
        return changed

    def upcast(self, fields: Fields) -> Fields:
        if self.kind == "add":
            fields[self.name] = DEFAULTS[self.of]
        elif self.kind == "rename":
            fields[self.to] = fields.pop(self.name)
        elif self.kind == "retype":
            fields[self.name] = self.of(len(str(fields[self.name])))
        elif self.kind == "remove":
            del fields[self.name]
        return fields


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Schema], list[Step]]:
    schemas: list[Schema] = [draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*VALUES]), max_size=3))]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from([*possible(schemas[-1])]))
        steps.append(step)
        schemas.append(step.change(schemas[-1]))
    return schemas, steps


def possible(schema: Schema) -> list[Step]:
    free = [name for name in NAMES if name not in schema]
    return [
        Step("nothing"),
        *(Step("add", name, of=kind) for name in free for kind in VALUES),
        *(Step("remove", name) for name in schema),
        *(Step("rename", name, to=to) for name in schema for to in free),
        *(Step("retype", name, of=kind) for name in schema for kind in VALUES if kind is not schema[name]),
    ]


def declare(schema: Schema, version: int, defaults: set[str]) -> type[DomainEvent]:
    body = {
        "type_name": f"properties.Chain{next(unique)}",
        "schema_version": version,
        "__module__": __name__,
        "__annotations__": dict(schema),
        **{name: DEFAULTS[kind] for name, kind in schema.items() if name in defaults},
    }
    return type("Chain", (DomainEvent,), body)


@given(data=st.data())
def test_what_the_check_lets_pass_is_read_from_every_version_as_it_was_meant(data: st.DataObject) -> None:
    schemas, steps = data.draw(chains())
    last = len(schemas)
    with_upcasters = data.draw(st.one_of(st.just(set(range(1, last))), st.sets(st.integers(1, last - 1))))
    cls = declare(schemas[-1], last, data.draw(st.sets(st.sampled_from(NAMES))) | added(steps))
    for version in with_upcasters:
        upcasts(cls, from_version=version)(steps[version - 1].upcast)
    problems = found_by_the_check(cls, schemas, with_upcasters)
    if len(with_upcasters) == len(steps):
        assert problems == []
    event("problems" if problems else "none")
    for version, schema in enumerate(schemas, 1):
        stored = unpack(pack({name: data.draw(VALUES[kind]) for name, kind in schema.items()}))
        if not problems:
            assert restore_event(StoredEvent(cls.type_name, version, stored)) == cls(**meant(stored, steps, version))


def added(steps: list[Step]) -> set[str]:
    return {step.name for step in steps if step.kind == "add"}


def meant(stored: Fields, steps: list[Step], version: int) -> Fields:
    fields = dict(stored)
    for step in steps[version - 1 :]:
        fields = step.upcast(fields)
    return fields


def found_by_the_check(cls: type[DomainEvent], schemas: list[Schema], with_upcasters: set[int]) -> list[str]:
    fields = describe(cls)
    versions = {
        version: {name: kind.__name__ for name, kind in schema.items()} for version, schema in enumerate(schemas, 1)
    }
    versions[cls.schema_version] = fields
    name = cls.type_name
    now = CurrentSchema(
        name=name, app="x", schema_version=cls.schema_version, fields=fields, upcast_from=with_upcasters
    )
    recorded = RecordedSchema(name=name, app="x", versions=versions)
    return [problem.text for problem in compare({name: recorded}, [now])]
