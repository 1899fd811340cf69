"""Docs and sample import public names only: the reference names the module and the names in its ``__all__``."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from enode_django import exceptions
from tests.docs.blocks import blocks
from tests.docs.pages import DOCS, PAGES, rows_by_code
from tests.docs.pages import name as page_name
from tests.meta.tree import ROOT, modules, name

PAGE = DOCS / "reference" / "imports.md"
ERRORS = exceptions.__name__


class Import(NamedTuple):
    place: str
    module: str
    name: str


def documented() -> dict[str, set[str]]:
    """The names of each module, as the reference has them."""
    return {
        module: set(re.findall(r"`([^`]+)`", rows[0][1]))
        for module, rows in rows_by_code(PAGE).items()
        if module.startswith("enode_django")
    }


def exported(module: str) -> list[str]:
    """The ``__all__`` of a module, read without importing it: some need extras."""
    path = ROOT.joinpath(*module.split("."))
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise AssertionError(f"{module} has no __all__")


def imports() -> Iterator[Import]:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                yield from imports_in(block.text, f"{page_name(page)}:{block.line}")
    for path in modules("sample_project"):
        yield from imports_in(path.read_text(), name(path))


def imports_in(text: str, place: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "enode_django":
            yield from (Import(place, node.module or "", alias.name) for alias in node.names)


def test_the_reference_names_what_each_module_exports() -> None:
    pages = documented()
    errors = pages.pop(ERRORS)
    assert pages == {module: set(exported(module)) for module in pages}
    known = {key for key, value in vars(exceptions).items() if inspect.isclass(value)}
    assert errors <= known


def test_docs_and_sample_import_what_is_public_and_nothing_else() -> None:
    public = {module: set(exported(module)) for module in documented().keys() - {ERRORS}}
    public[ERRORS] = {key for key, value in vars(exceptions).items() if inspect.isclass(value)}
    found = list(imports())
    assert len(found) > 300
    assert [each for each in found if each.name not in public.get(each.module, ())] == []
