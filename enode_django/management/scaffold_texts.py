"""The modules that ``manage.py startaggregate`` writes, as text: laid out as ruff and black do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from enode_django.management.scaffold_fields import Field

WIDTH = 88


class Names(NamedTuple):
    """``package`` is the app's, such as ``shop``; ``root`` the aggregate's class, ``module`` that in small letters."""

    package: str
    root: str
    module: str

    @property
    def classes(self) -> Sequence[str]:
        return (*self.of_the_domain, self.row, f"{self.root}Rows")

    @property
    def of_the_domain(self) -> Sequence[str]:
        root = self.root
        return (root, f"Create{root}", f"Change{root}", f"{root}Created", f"{root}Changed")

    @property
    def row(self) -> str:
        return f"{self.root}Row"


def domain(names: Names, fields: Sequence[Field]) -> str:
    root, module = names.root, names.module
    declared = _lines(f"{field.name}: {field.type}" for field in fields)
    state = _lines(field.in_aggregate for field in fields)
    taken = _lines((f"self.{field.name} = event.{field.name}" for field in fields), 8)
    same = [f"{field.name}={field.name}" for field in fields]
    own, given = _of("self", fields), [field.name for field in fields]
    parameters = [f"{field.name}: {field.type}" for field in fields]
    return f'''"""{root}: created, and changed."""

from __future__ import annotations

{_imports(fields)}from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    applies,
    command_handler,
)


class Create{root}(Command):
{declared}


class Change{root}(Command):
{declared}


class {root}Created(DomainEvent):
{declared}


class {root}Changed(DomainEvent):
{declared}


class {root}(AggregateRoot):
{state}

    @classmethod
{_call("    def create", ["cls", "id: str", *parameters], f" -> {root}:")}
        {module} = cls(id)
{_call(f"        event = {root}Created", same)}
        {module}.apply(event)
        return {module}

{_call("    def change", ["self", *parameters], " -> None:")}
        """What is as it was changes nothing."""
{_values("        before = ", own)}
{_values("        if ", given, " != before:")}
{_call(f"            event = {root}Changed", same)}
            self.apply(event)

    @applies({root}Created, {root}Changed)
    def _follow(self, event: {root}Created | {root}Changed) -> None:
{taken}


@command_handler(Create{root})
def create_{module}(command: Create{root}, context: CommandContext) -> None:
{_call(f"    {module} = {root}.create", ["command.aggregate_root_id", *_of("command", fields)])}
    context.add({module})


@command_handler(Change{root})
def change_{module}(command: Change{root}, context: CommandContext) -> None:
{_call(f"    context.get({root}).change", _of("command", fields))}
'''


def model(names: Names, fields: Sequence[Field]) -> str:
    return f"""class {names.row}(ReadModel):
{_lines(f"{field.name} = models.{field.kind.model}" for field in fields)}

    def __str__(self) -> str:
        return self.aggregate_root_id
"""


MODEL_IMPORTS = ("from django.db import models", "from enode_django.models import ReadModel")


def models(names: Names, fields: Sequence[Field]) -> str:
    imports = "\n".join(MODEL_IMPORTS)
    return f"from __future__ import annotations\n\n{imports}\n\n\n{model(names, fields)}"


def projection(names: Names, fields: Sequence[Field]) -> str:
    root = names.root
    return f"""from __future__ import annotations

from enode_django import ModelProjection, handles

{_imported(f"{names.package}.domain.{names.module}", [f"{root}Changed", f"{root}Created"])}
from {names.package}.models import {names.row}


class {root}Rows(ModelProjection[{names.row}]):
    model = {names.row}

    @handles({root}Created, {root}Changed)
{_call("    def follow", ["self", f"row: {names.row}", f"event: {root}Created | {root}Changed"], " -> None:")}
{_lines((f"row.{field.name} = event.{field.name}" for field in fields), 8)}
"""


def tests(names: Names, fields: Sequence[Field]) -> str:
    root, module = names.root, names.module
    one, other = ([f"{field.name}={field.kind.examples[place]}" for field in fields] for place in (0, 1))
    create = _call(f"        create = Create{root}", ['aggregate_root_id="a"', *one])
    change = _call(f"        change = Change{root}", ['aggregate_root_id="a"', *other])
    return f"""from __future__ import annotations

{_imports(fields, with_examples=True)}from django.test import SimpleTestCase
from enode_django.testing import given

{_imported(f"{names.package}.domain.{module}", names.of_the_domain)}
from {names.package}.projections.{module} import {root}Rows

{_call(f"CREATED = {root}Created", one)}
{_call(f"CHANGED = {root}Changed", other)}


class {root}Tests(SimpleTestCase):
    def test_it_is_created(self) -> None:
{create}
        given({root}, "a").when(create).then(CREATED)

    def test_it_is_changed_once(self) -> None:
{change}
        {module} = given({root}, "a", CREATED)
        {module}.when(change).then(CHANGED)
{change.replace("change =", "again =")}
        {module}.when(again).then_nothing()

    def test_its_row_follows(self) -> None:
        row = given({root}Rows, "a", CREATED)
{_call("        row.then", one)}
        row.when(CHANGED)
{_call("        row.then", [*other, "version=2"])}
"""


def _imports(fields: Sequence[Field], *, with_examples: bool = False) -> str:
    """Return imports of the standard library, with an empty line behind them."""
    wanted: dict[str, set[str]] = {}
    for field in fields:
        if field.kind.module:
            names = wanted.setdefault(field.kind.module, set())
            names.update({field.type, *([field.kind.beside] if with_examples and field.kind.beside else [])})
    lines = [f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(wanted.items())]
    return "".join([*lines, "\n"]) if lines else ""


def _lines(lines: Iterable[str], indent: int = 4) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _of(name: str, fields: Sequence[Field]) -> list[str]:
    return [f"{name}.{field.name}" for field in fields]


def _values(head: str, values: Sequence[str], end: str = "") -> str:
    return f"{head}{values[0]}{end}" if len(values) == 1 else _call(head, values, end)


def _imported(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    return line if len(line) <= WIDTH else _call(f"from {module} import ", sorted(names))


def _call(head: str, arguments: Sequence[str], end: str = "") -> str:
    """On one line, or with an argument on each."""
    line = f"{head}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return line
    indent = len(head) - len(head.lstrip())
    return f"{head}(\n{_lines((f'{one},' for one in arguments), indent + 4)}\n{' ' * indent}){end}"
