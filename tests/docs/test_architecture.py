"""The page about the architecture: its picture is that of the import graph, and its tables name what exists."""

from __future__ import annotations

import re
from itertools import chain

import grimp
import pytest

from tests.docs import rooms_picture
from tests.docs.pages import DOCS
from tests.meta.tree import ROOT

PAGE = DOCS / "discussions" / "architecture.md"
PACKAGE = "enode_django"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_the_picture_of_the_rooms_is_drawn_of_the_layers() -> None:
    assert rooms_picture.PICTURE.read_text() == rooms_picture.drawn(rooms_picture.layers()), (
        "draw it anew: python -m tests.docs.rooms_picture"
    )


def test_every_import_goes_to_a_lower_row_of_the_picture(graph: grimp.ImportGraph) -> None:
    row_of = {room: row for row, rooms in enumerate(rooms_picture.layers()) for room in rooms}
    assert row_of.keys() == {room_of(module) for module in graph.modules if module != PACKAGE}
    upward = [
        (importer, imported)
        for importer in graph.modules - {PACKAGE}
        for imported in graph.find_modules_directly_imported_by(importer) - {PACKAGE}
        if room_of(importer) != room_of(imported) and row_of[room_of(importer)] >= row_of[room_of(imported)]
    ]
    assert upward == []


def test_the_table_of_rooms_names_each_room_once() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    named = [
        room for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for room in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(chain.from_iterable(rooms_picture.layers()))


def test_files_and_directories_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:enode_django|tests|docs)/[\w./]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []
