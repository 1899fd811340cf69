"""The python blocks of the pages run. The quickstart has a test of its own, which follows it as a whole."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests import warm
from tests.docs.blocks import blocks, commands
from tests.docs.pages import DOCS, PAGES, name
from tests.meta.tree import ROOT
from tests.template import migrated_database

README = ROOT / "README.md"
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
QUICKSTART = DOCS / "quickstart.md"
RUNNING = [page for page in WITH_PYTHON if page != QUICKSTART and any(block.runs for block in blocks(page))]
WITH_TESTS = [
    page
    for page in WITH_PYTHON
    if page != QUICKSTART and any(Path(b.option("file") or "").name.startswith("test") for b in blocks(page))
]

SETTINGS = """\
import os

from sample_project.settings import database_from_url

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIGRATION_MODULES = {"auth": None, "contenttypes": None, "sessions": None}  # their tables at once, which is faster
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
DATABASES = {
    "default": {
        **database_from_url(os.environ["DATABASE_URL"]),
        "TEST": {
            "NAME": f"test_docs_{os.getpid()}",
            "TEMPLATE": os.environ.get("ENODE_TESTS_MIGRATED"),
            "MIGRATE": "ENODE_TESTS_MIGRATED" not in os.environ,
        },
    }
}
"""


@pytest.fixture
def project(tmp_path: Path, postgres_url: str) -> Path:
    """The project of the pages: the relevant files of ``startproject``, and the app ``accounts`` as the README has it.
    A page adds its own files, and its additions to those."""
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "urls.py").write_text("urlpatterns = []\n")
    (tmp_path / "accounts").mkdir()
    (tmp_path / "accounts" / "domain.py").write_text("\n".join(screen().splitlines()[:-2]) + "\n")
    write_files(README, tmp_path)
    return tmp_path


def screen() -> str:
    """The program that the README begins with."""
    (block,) = (block for block in blocks(README) if block.option("file") == "bank.py")
    return block.text


def has_files(page: Path) -> bool:
    return any(block.option("file") or block.option("append") for block in blocks(page))


def write_files(page: Path, directory: Path) -> None:
    for block in blocks(page):
        if target := block.option("file"):
            path = directory / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif target := block.option("append"):
            with (directory / target).open("a") as file:
                file.write(f"\n{block.text}")


def run_python(directory: Path, *arguments: str) -> str:
    of_project = {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "settings"}
    environment = {**os.environ, **migrated_database(), **of_project}
    done = warm.run(arguments, cwd=directory, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", [page for page in RUNNING if has_files(page)], ids=name)
def test_the_python_blocks_of_a_page_with_files_run(page: Path, project: Path) -> None:
    if page != README:
        write_files(page, project)
    run_python(project, "-m", "tests.docs.run_page", str(page))


def test_the_python_blocks_of_pages_without_files_run(project: Path) -> None:
    pages = [str(page) for page in RUNNING if not has_files(page)]
    assert len(pages) > 10
    run_python(project, "-m", "tests.docs.run_page", *pages)


@pytest.mark.parametrize("page", WITH_TESTS, ids=name)
def test_the_tests_that_a_page_shows_pass(page: Path, project: Path) -> None:
    write_files(page, project)
    assert "Ran " in run_python(project, "-m", "django", "test", "accounts")


def test_a_block_that_fails_names_its_page_and_line(project: Path) -> None:
    page = project / "page.md"
    page.write_text("text\n\n```python\nfine = 1\nassert fine == 2\n```\n")
    with pytest.raises(AssertionError, match=r'page\.md", line 5'):
        run_python(project, "-m", "tests.docs.run_page", str(page))


def test_python_that_does_not_run_is_python_at_least() -> None:
    for page in WITH_PYTHON:
        for block in blocks(page):
            if block.language == "python":
                ast.parse(block.at_its_lines, str(page))


def test_the_program_of_the_readme_prints_one_line_which_says_that_nothing_is_stored(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(screen())
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = warm.run(["bank.py"], cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("no database is configured: aggregates and events are kept in the memory of this process")


def test_the_first_screen_of_the_readme_fits_on_one() -> None:
    assert len(screen().splitlines()) <= 40


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = [command.line for block in blocks(README) if block.language == "console" for command in commands(block)]
    targets = [line.split()[1] for line in shown if line.startswith("make ")]
    assert targets[:2] == ["demo", "test"]
    for target in targets:
        assert f"\n{target}:" in makefile
