"""The texts of the modules that ``manage.py startaggregate`` writes, formatted as ruff and black do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from enode_django.management.scaffold_fields import Field

WIDTH = 88


class Names(NamedTuple):
    """``package`` is the app's package, such as ``shop``, ``root`` the aggregate's class, and ``module`` its module:
    the class's name in lower case with underscores."""

    package: str
    root: str
    module: str

    @property
    def classes(self) -> Sequence[str]:
        return (self.root, *self.messages, self.row, f"{self.root}Rows")

    @property
    def messages(self) -> Sequence[str]:
        root = self.root
        return (f"Create{root}", f"Change{root}", f"{root}Created", f"{root}Changed")

    @property
    def prefix(self) -> str:
        return f"{self.module.replace('_', '-')}-"

    @property
    def row(self) -> str:
        return f"{self.root}Row"


def domain(names: Names, fields: Sequence[Field]) -> str:
    root = names.root
    declared = _lines(f"{field.name}: {field.type}" for field in fields)
    state = _lines(field.in_aggregate for field in fields)
    taken = _lines((f"self.{field.name} = event.{field.name}" for field in fields), 8)
    same = [f"{field.name}=command.{field.name}" for field in fields]
    return f'''"""{root}: created, and changed."""

from __future__ import annotations

{_imports(fields)}from enode_django import AggregateRoot, Command, DomainEvent, applies, command_handler


class Create{root}(Command):
{declared}


class Change{root}(Command):
{declared}


class {root}Created(DomainEvent):
{declared}


class {root}Changed(DomainEvent):
{declared}


class {root}(AggregateRoot):
    id_prefix = "{names.prefix}"
{state}

    @command_handler(creates=True)
{_call("    def create", ["self", f"command: Create{root}"], " -> None:")}
{_applied(f"{root}Created", same, 8)}

    @command_handler
{_call("    def change", ["self", f"command: Change{root}"], " -> None:")}
        """Change nothing if all values are equal."""
{_values("        before = ", _of("self", fields))}
{_values("        if ", _of("command", fields), " != before:")}
{_applied(f"{root}Changed", same, 12)}

    @applies
{_call("    def _follow", ["self", f"event: {root}Created | {root}Changed"], " -> None:")}
{taken}
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
    @handles(creates=True)
{_call("    def follow", ["self", f"row: {names.row}", f"event: {root}Created | {root}Changed"], " -> None:")}
{_lines((f"row.{field.name} = event.{field.name}" for field in fields), 8)}
"""


def tests(names: Names, fields: Sequence[Field]) -> str:
    root, module = names.root, names.module
    id = f'"{names.prefix}1"'
    one, other = ([f"{field.name}={field.kind.examples[place]}" for field in fields] for place in (0, 1))
    return f"""from __future__ import annotations

{_imports(fields, with_examples=True)}from django.test import SimpleTestCase
from enode_django.testing import given

{_imported(f"{names.package}.domain.{module}", names.messages)}
from {names.package}.projections.{module} import {root}Rows

{_call(f"CREATE = Create{root}", [id, *one])}
{_call(f"CHANGE = Change{root}", [id, *other])}
{_call(f"CREATED = {root}Created", one)}
{_call(f"CHANGED = {root}Changed", other)}


class {root}Tests(SimpleTestCase):
    def test_it_is_created(self) -> None:
        given().when(CREATE).then(CREATED)

    def test_it_is_changed(self) -> None:
        given(CREATED).when(CHANGE).then(CHANGED)

    def test_equal_values_change_nothing(self) -> None:
        given(CREATED, CHANGED).when(CHANGE).then_nothing()

    def test_its_row_follows(self) -> None:
{_call(f"        row = given({root}Rows, CREATED).then", one)}
{_call("        row.when(CHANGED).then", [*other, "version=2"])}
"""


def _imports(fields: Sequence[Field], *, with_examples: bool = False) -> str:
    """Return the imports from the standard library and an empty line; empty if there are none."""
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


def _applied(event: str, arguments: Sequence[str], indent: int) -> str:
    line = f"{' ' * indent}self.apply({event}({', '.join(arguments)}))"
    if len(line) <= WIDTH:
        return line
    call = _call(f"{' ' * (indent + 4)}{event}", arguments)
    return f"{' ' * indent}self.apply(\n{call}\n{' ' * indent})"


def _imported(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    return line if len(line) <= WIDTH else _call(f"from {module} import ", sorted(names))


def _call(head: str, arguments: Sequence[str], end: str = "") -> str:
    """Return a call on one line, or with one argument a line if it is too long."""
    line = f"{head}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return line
    indent = len(head) - len(head.lstrip())
    return f"{head}(\n{_lines((f'{one},' for one in arguments), indent + 4)}\n{' ' * indent}){end}"
