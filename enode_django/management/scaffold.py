"""Plan and write the files of ``manage.py startaggregate``. Existing files are extended, but not overwritten."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from django.apps import AppConfig
from django.core.management.base import CommandError

from enode_django.management import scaffold_texts as texts
from enode_django.management.scaffold_fields import KINDS, Field
from enode_django.management.scaffold_texts import Names
from enode_django.serialization.registry import types

_IMPORTED = {"AggregateRoot", "Command", "DomainEvent", "ModelProjection", "ReadModel"}


class Plan(NamedTuple):
    """The texts of ``new`` files, and of ``changed`` files with added lines."""

    new: dict[Path, str]
    changed: dict[Path, str]

    def add_import(self, path: Path, line: str) -> None:
        if path.exists():
            self.changed[path] = with_import(path.read_text(encoding="utf-8"), line, path)
        else:
            self.new[path] = f"{line}\n"

    def carry_out(self) -> None:
        """Write the files. If that fails, delete the new files, restore the changed ones as far as possible, and raise
        `CommandError`."""
        made: list[Path] = []
        before: dict[Path, str] = {}
        try:
            for path, text in self.new.items():
                path.parent.mkdir(exist_ok=True)
                with path.open("x", encoding="utf-8") as file:
                    made.append(path)
                    file.write(text)
            for path, text in self.changed.items():
                before[path] = path.read_text(encoding="utf-8")
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            for path in made:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # the file that could not be written is the last one of these
                for path, text in before.items():
                    path.write_text(text, encoding="utf-8")
            raise CommandError(f"the files could not be written: {error}") from error


def names_for(config: AppConfig, root: str) -> Names:
    """Return the names for an aggregate's class ``root``. Raises `CommandError` if one is impossible or taken."""
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", root).lower()
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", root) or keyword.iskeyword(root) or keyword.iskeyword(module):
        raise CommandError(f"an aggregate cannot be called {root!r}; use a name like Order or BankAccount")
    names = Names(config.name, root, module)
    known = {cls.__name__ for cls, name in types.names().items() if name.startswith(f"{config.label}.")}
    known |= {model.__name__ for model in config.get_models()}
    for name in names.classes:
        if name in _IMPORTED or name in KINDS:
            raise CommandError(f"{root!r} would make a class {name}, which the framework has; use another name")
        if name in known:
            raise CommandError(f"the app {config.label!r} has a class {name} already; use another name")
    return names


def plan(config: AppConfig, names: Names, fields: Sequence[Field]) -> Plan:
    """Return the files to write. Raises `CommandError` if one exists already or cannot be extended."""
    app = Path(config.path)
    if {"site-packages", "dist-packages"} & {*app.parts}:
        raise CommandError(f"the app {config.label!r} is installed, not yours; name one of the project's apps")
    planned = Plan({}, {})
    for folder, text in (("domain", texts.domain(names, fields)), ("projections", texts.projection(names, fields))):
        line = f"from {names.package}.{folder} import {names.module} as {names.module}"
        planned.new[app / folder / f"{names.module}.py"] = text
        planned.add_import(_package(app, folder), line)
    _plan_model(planned, app, names, fields)
    tests = app / "tests" if (app / "tests").is_dir() else app
    planned.new[tests / f"test_{names.module}.py"] = texts.tests(names, fields)
    for path in planned.new:
        if path.exists():
            raise CommandError(f"{path} exists already; nothing was written")
    return planned


def _plan_model(planned: Plan, app: Path, names: Names, fields: Sequence[Field]) -> None:
    """Plan the model: a class at the end of ``models.py``, or a module of the package ``models``."""
    module = app / "models.py"
    if (app / "models").is_dir():
        planned.new[app / "models" / f"{names.module}.py"] = texts.models(names, fields)
        line = f"from {names.package}.models.{names.module} import {names.row} as {names.row}"
        planned.add_import(app / "models" / "__init__.py", line)
    elif module.exists():
        text = module.read_text(encoding="utf-8")
        for line in texts.MODEL_IMPORTS:
            text = with_import(text, line, module)
        planned.changed[module] = f"{text.rstrip()}\n\n\n{texts.model(names, fields)}"
    else:
        planned.new[module] = texts.models(names, fields)


def _package(app: Path, name: str) -> Path:
    """Return the ``__init__.py`` of a package. Autodiscovery imports it, and so the modules that it imports."""
    if (app / f"{name}.py").exists():
        raise CommandError(
            f"{app / name}.py is a module; make it a package first: mkdir {name}, move {name}.py to {name}/__init__.py"
        )
    return app / name / "__init__.py"


def with_import(text: str, line: str, path: Path) -> str:
    """Return the text of a module with one more import, in the order of names. Raises `CommandError` if the text cannot
    be parsed.

    >>> with_import("import re\\nfrom a import b\\nx = 1\\n", "from c import d", Path("m.py"))
    'import re\\nfrom a import b\\nfrom c import d\\nx = 1\\n'
    """
    lines = text.splitlines(keepends=True)
    if line in map(str.rstrip, lines):
        return text
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CommandError(f"{path} cannot be parsed: {error}") from error
    at = _place(tree, line)
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    return "".join([*lines[:at], f"{line}\n", *lines[at:]])


def _place(tree: ast.Module, line: str) -> int:
    """Return the number of lines before the new import."""
    imports = [*_imports(tree)]
    before = [node for node in imports if _key(node) <= _key(ast.parse(line).body[0])]
    if before:
        return before[-1].end_lineno or 0
    if imports:
        return imports[0].lineno - 1
    first = tree.body[:1]
    is_docstring = bool(first) and isinstance(first[0], ast.Expr) and ast.get_docstring(tree) is not None
    return (first[0].end_lineno or 0) if is_docstring else 0


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield node


def _key(node: ast.stmt) -> tuple[str, str]:
    assert isinstance(node, ast.ImportFrom)
    return node.module or "", node.names[0].name
