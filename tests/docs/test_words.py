"""One word for each concept, and plain ones."""

from __future__ import annotations

import re
from pathlib import Path

import enode_django
from tests.docs.blocks import without_blocks
from tests.docs.pages import DOCS, PAGES, code_of, name, tables
from tests.meta.tree import ROOT, modules

GLOSSARY = DOCS / "glossary.md"
PUFF = ("simply", "easily", "obviously", "of course", "blazing", "powerful", "seamless", "robust", "state-of-the-art")
HOST = re.compile(r"https?://([\w.-]+)")
PUBLIC_HOSTS = {"127.0.0.1", "keepachangelog.com", "semver.org"}


def glossary_rows(columns: int) -> list[list[str]]:
    return [row for table in tables(GLOSSARY) for row in table if len(row) == columns]


def prose(page: Path) -> str:
    text = without_blocks(page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`]*`", "", text).lower()


def test_every_word_of_the_glossary_stands_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in modules("enode_django"))
    rows = glossary_rows(3)
    assert len(rows) > 30
    assert [row[0] for row in rows if not is_word_of(code_of(row[2]) or "?", code)] == []


def is_word_of(word: str, text: str) -> bool:
    """Look for the letters before their bounds, which is ten times faster than ``\\b`` in front."""
    letters = re.escape(word)
    return re.search(rf"{letters}(?<!\w{letters})\b", text) is not None


def test_no_word_has_two_meanings() -> None:
    words = [row[0].strip("*").lower() for row in glossary_rows(3)]
    assert sorted(words) == sorted(set(words))


def test_pages_use_the_words_of_the_glossary() -> None:
    avoided = [row[0] for row in glossary_rows(2)]
    assert "partition" in avoided
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, avoided))})s?\b")
    assert {name(page): found for page in PAGES if page != GLOSSARY and (found := pattern.findall(prose(page)))} == {}


def test_pages_do_not_praise_themselves() -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, PUFF))})\b")
    assert {name(page): found for page in PAGES if (found := pattern.findall(prose(page)))} == {}


def test_pages_name_no_hosts_but_public_ones() -> None:
    hosts = {name(page): set(HOST.findall(page.read_text(encoding="utf-8"))) - PUBLIC_HOSTS for page in PAGES}
    assert {page: found for page, found in hosts.items() if found} == {}


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == enode_django.__version__


def test_every_public_name_is_documented() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [each for each in enode_django.__all__ if not re.search(rf"\b{each}\b", text)] == []
