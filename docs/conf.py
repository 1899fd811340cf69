"""The site: every page of the repository as it is, and the reference that is made of docstrings. See `make docs`.

Pages are read from the root of the repository, so that links between pages, and from pages to code, lead to the same
place here as where the files are browsed.
"""

from __future__ import annotations

import functools
import gc
import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import django
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

gc.disable()  # the trees of documents stay to the end: looking for garbage among them takes a third of the time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample_project.settings")
django.setup()

import enode_django  # noqa: E402

for name in enode_django.__all__:
    getattr(enode_django, name)  # some are loaded when they are first used, and documented when they are there

project = "enode_django"
version = release = enode_django.__version__
language = "en"

root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = ["build", "archive", "broker", "dist", ".*"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]
suppress_warnings = ["misc.highlighting_failure"]
default_role = "literal"

autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_title = f"enode_django {release}"
html_copy_source = False
html_show_copyright = False

TREE = "├└│"
BEFORE_THEME, AFTER_THEME = 400, 600
DOORS = re.compile(r"^### (?P<door>.+)$(?P<pages>(?:\n(?!#).*)*)", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")
SECTION = """
```{{toctree}}
:hidden:
:glob:
:caption: {caption}

{pages}
```
"""
ENTRY = re.compile(r'<li class="(?P<level>toctree-l\d)[\w -]*"><a class="[\w -]*" href="(?P<href>[^"]*)">')
WITH_PAGE = re.compile(r"<ul>((?:(?!</ul>).)*? current-page)", re.DOTALL)
UNLISTED = {"Understand": ["docs/decisions/*"], "Look up": ["docs/reference/api/*"]}
"""Pages that the README does not name one by one, by the door behind which they stand."""


def doors(readme: str) -> dict[str, list[str]]:
    """Return the pages behind each door, in the order in which the README names them."""
    listed = readme.partition("\n## All pages\n")[2].partition("\n## ")[0]
    named = {match["door"]: PAGE.findall(match["pages"]) for match in DOORS.finditer(listed)}
    return {door: [*pages, *UNLISTED.get(door, [])] for door, pages in named.items()}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """The README is the landing page, and other renderers know no table of contents."""
    if page == root_doc:
        parts = doors(source[0]).items()
        source[0] += "".join(SECTION.format(caption=door, pages="\n".join(pages)) for door, pages in parts)


def drop_words_for_tests(app: Sphinx, page: str, source: list[str]) -> None:
    """``python file=a.py`` says to the tests what a block is; the highlighter wants the language alone."""
    lines = source[0].split("\n")
    source[0] = "\n".join(line.split(" ")[0] if line.startswith("```") else line for line in lines)


def keep_trees(app: Sphinx, what: str, named: str, found: object, options: object, lines: list[str]) -> None:
    """A tree that is drawn in a docstring stays as it is."""
    drawn = [line[:1] in TREE and line != "" for line in lines]
    result: list[str] = []
    for number, line in enumerate(lines):
        in_tree = drawn[number] or (number + 1 < len(lines) and drawn[number + 1])
        if in_tree and not drawn[number]:
            result += ["::", ""]
        result.append(f"    {line}" if in_tree else line)
    lines[:] = result


def copy_landing_page(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


class Contents:
    """The contents that stand beside each page. They are made for the first one: for the others they differ in the
    addresses, and in the mark of the page itself. Sphinx would copy the headings of all pages for each of them, which
    takes a third of the time."""

    def __init__(self) -> None:
        self._first: tuple[str, str] | None = None
        """The first page, and the contents beside it."""

    def hold_back(self, app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
        """Let the theme make no contents, once there are some."""
        if self._first is not None:
            context["toctree"] = lambda **options: ""

    def show(self, app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
        if self._first is None:
            self._first = (page, context["furo_navigation_tree"])
        else:
            context["furo_navigation_tree"] = self._beside(page, *self._first)

    @staticmethod
    def _beside(page: str, first: str, contents: str) -> str:
        def entry(found: re.Match[str]) -> str:
            target = first if found["href"] == "#" else posixpath.join(posixpath.dirname(first), found["href"])
            target = posixpath.normpath(target.removesuffix(".html"))
            of_item, of_link, href = "", "", posixpath.relpath(f"{target}.html", posixpath.dirname(page) or ".")
            if target == page:
                of_item, of_link, href = " current current-page", "current ", "#"
            return f'<li class="{found["level"]}{of_item}"><a class="{of_link}reference internal" href="{href}">'

        moved = ENTRY.sub(entry, contents.replace('<ul class="current">', "<ul>"))
        return WITH_PAGE.sub(r'<ul class="current">\1', moved)


class RememberedStems(SearchEnglish):
    """Finds the stem of each word once. Few of the 50,000 words of the pages differ."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.stem = functools.cache(super().stem)  # type: ignore[method-assign]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_search_language(RememberedStems)
    app.connect("source-read", drop_words_for_tests)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", keep_trees)
    contents = Contents()
    app.connect("html-page-context", contents.hold_back, priority=BEFORE_THEME)
    app.connect("html-page-context", contents.show, priority=AFTER_THEME)
    app.connect("build-finished", copy_landing_page)
    return {"parallel_read_safe": True}
