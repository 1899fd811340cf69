"""The site is built without a warning, its links lead somewhere, and it needs nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import enode_django
from tests.docs.pages import PAGES, name
from tests.meta.tree import ROOT

LOADED = re.compile(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]+)"')
LINK = re.compile(r'<a\b[^>]*?\bhref="([^"]+)"')
ANCHOR = re.compile(r'\bid="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", "-b", "html"]
    done = subprocess.run([*command, ".", directory], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return directory


def test_every_page_is_on_the_site_and_the_readme_is_where_it_begins(site: Path) -> None:
    assert [page for page in map(name, PAGES) if not (site / page).with_suffix(".html").is_file()] == []
    assert (site / "index.html").read_text() == (site / "README.html").read_text()


def test_the_site_has_the_five_doors_of_the_readme_and_their_pages_in_its_order(site: Path) -> None:
    readme = next(page for page in PAGES if name(page) == "README.md").read_text()
    listed = readme.split("\n## All pages\n")[1].split("\n## ")[0]
    wanted = re.findall(r"^### (.+)$|\]\(([\w/-]+)\.md\)", listed, re.MULTILINE)
    tree = (site / "index.html").read_text().partition('<div class="sidebar-tree">')[2].partition("</div>")[0]
    found = re.findall(r'caption-text">([^<]+)<|class="toctree-l1[^>]*><a[^>]*href="([^"]+)\.html"', tree)
    assert [door for door, _ in wanted if door] == ["Start", "Build", "Operate", "Understand", "Look up"]
    assert [one for one in found if one in wanted] == wanted
    beside = [page for _, page in found if page and ("", page) not in wanted]
    assert {page.rpartition("/")[0] for page in beside} == {"docs/decisions", "docs/reference/api"}
    pages = [page for _, page in wanted if page]
    assert len(pages) == len(set(pages))


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    texts = {path: path.read_text() for path in site.rglob("*.html")}
    anchors = {path: set(ANCHOR.findall(text)) for path, text in texts.items()}
    broken = []
    for path, text in texts.items():
        for link in set(LINK.findall(text)):
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            lost = parts.fragment and target.suffix == ".html" and parts.fragment not in anchors.get(target, ())
            if not parts.scheme and (not target.exists() or lost):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {link for path in site.rglob("*.html") for link in LOADED.findall(path.read_text())}
    assert loaded
    assert {link for link in loaded if urlsplit(link).netloc} == set()


def test_public_names_have_their_docstrings_on_the_site(site: Path) -> None:
    text = (site / "docs" / "reference" / "api" / "enode_django.html").read_text()
    public = [each for each in enode_django.__all__ if getattr(getattr(enode_django, each), "__doc__", None)]
    assert [each for each in public if f'id="enode_django.{each}"' not in text] == []
