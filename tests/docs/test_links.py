from __future__ import annotations

import functools
import re
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from tests.docs.blocks import without_blocks
from tests.docs.pages import DOCS, PAGES, name
from tests.meta.tree import ROOT

LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OUTSIDE = {"keepachangelog.com", "semver.org"}


def links(page: Path) -> list[str]:
    return [match["target"] for match in LINK.finditer(without_blocks(page.read_text(encoding="utf-8")))]


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page as common renderers make them: lower case, no punctuation, hyphens for spaces."""
    headings = HEADING.findall(without_blocks(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return parts.hostname in OUTSIDE
    target = (page.parent / parts.path).resolve() if parts.path else page
    return target.is_file() and (not parts.fragment or parts.fragment in anchors(target))


def test_links_lead_somewhere() -> None:
    assert [(name(page), link) for page in PAGES for link in links(page) if not leads_somewhere(page, link)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [(page.parent / urlsplit(link).path).resolve() for link in links(page) if not urlsplit(link).scheme]
    assert set(map(name, PAGES)) - set(map(name, seen)) == set()


def test_decisions_are_numbered_without_a_gap() -> None:
    decisions = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert [int(path[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        text = (DOCS / "decisions" / path).read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"], path


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_readable_in_light_and_dark_and_by_screen_readers(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    svg = {"svg": "http://www.w3.org/2000/svg"}
    style = root.findtext("svg:style", namespaces=svg) or ""
    assert "prefers-color-scheme: dark" in style
    assert root.findtext("svg:title", namespaces=svg)
    assert root.findtext("svg:desc", namespaces=svg)
    used = {word for element in root.iter() for word in element.get("class", "").split()}
    assert used <= set(re.findall(r"\.(\w+) \{", style))
