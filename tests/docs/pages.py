"""The pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.meta.tree import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_CELL = re.compile(r"(?<!\\)\|")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def tables(page: Path) -> Iterator[list[list[str]]]:
    """The rows of each table, without its head."""
    yield from tables_of(page.read_text(encoding="utf-8"))


def tables_of(text: str) -> Iterator[list[list[str]]]:
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in _CELL.split(line.strip().strip("|"))])
        elif rows:
            yield rows[2:]
            rows = []


def code_of(cell: str) -> str:
    """Return the text between the backticks of a cell that contains nothing else, or an empty text."""
    return cell[1:-1] if len(cell) > 2 and cell[0] == cell[-1] == "`" and "`" not in cell[1:-1] else ""


def rows_by_code(page: Path) -> dict[str, list[list[str]]]:
    """The rows whose first cell is code, by that."""
    found: dict[str, list[list[str]]] = {}
    for table in tables(page):
        for row in table:
            if code := code_of(row[0]):
                found.setdefault(code, []).append(row)
    return found
