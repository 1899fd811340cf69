"""`manage.py startaggregate` writes code that works at once, and overwrites nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.apps import AppConfig, apps
from django.core.management import call_command
from django.core.management.base import CommandError

from enode_django.management.scaffold import Plan, names_for, plan, with_import
from enode_django.management.scaffold_fields import KINDS, parse_fields
from enode_django.management.scaffold_texts import Names
from tests import warm
from tests.meta.tree import ROOT
from tests.template import migrated_database

SETTINGS = """
import os

from sample_project.settings import database_from_url

SECRET_KEY = "of a test"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.postgres", "enode_django", "shop"]
USE_TZ = True
DATABASES = {
    "default": {
        **database_from_url(os.environ["DATABASE_URL"]),
        "TEST": {"NAME": f"test_shop_{os.getpid()}", "TEMPLATE": os.environ.get("ENODE_TESTS_MIGRATED")},
    }
}
"""
TRY = """
import django

django.setup()

from django.core.management import call_command
from django.test.utils import setup_databases, teardown_databases

call_command("makemigrations", "shop")
call_command("check")
databases = setup_databases(verbosity=0, interactive=False)
try:
    from decimal import Decimal

    from enode_django import execute_command
    from enode_django.testing import inline
    from shop.domain.order_line import ChangeOrderLine, CreateOrderLine
    from shop.models import OrderLineRow

    with inline():
        execute_command(CreateOrderLine("order-line-a", item="Tea", price=Decimal(2)))
        execute_command(ChangeOrderLine("order-line-a", item="Tea", price=Decimal(3)))
    row = OrderLineRow.objects.get()
    print("row", row, row.item, row.price, row.version)
finally:
    teardown_databases(databases, verbosity=0)
call_command("test", "shop")
"""


def run_python(directory: Path, *arguments: str) -> str:
    of_project = {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "settings"}
    environment = {**os.environ, **migrated_database(), **of_project}
    return shown_by(warm.run(arguments, cwd=directory, env=environment))


def run_ruff(directory: Path, *arguments: str) -> None:
    command = [Path(sys.executable).with_name("ruff"), *arguments]
    shown_by(subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False))


def shown_by(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_what_it_writes_into_a_new_app_passes_its_tests_and_the_linter(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS)
    app = tmp_path / "shop"
    app.mkdir()
    call_command("startapp", "shop", str(app))
    fields = ["item:str", "price:Decimal"]
    shown = run_python(tmp_path, "-m", "django", "startaggregate", "shop", "OrderLine", "--fields", *fields)
    assert "written: shop/domain/order_line.py" in shown
    assert "added to: shop/models.py" in shown
    every_kind = [f"a_{kind.lower()}:{kind}" for kind in KINDS]
    every_kind += ["crate:str", "event:str", "command:str", "row:str", "self:str"]
    run_python(tmp_path, "-m", "django", "startaggregate", "shop", "Crate", "--fields", *every_kind)
    done = run_python(tmp_path, "-c", TRY)
    assert "row order-line-a Tea 3.00 2" in done
    assert "Ran 8 tests" in done
    assert "no issues" in done
    written = [str(path) for path in app.rglob("*.py") if "order_line" in path.name or "crate" in path.name]
    inside = [str(app / folder / "__init__.py") for folder in ("domain", "projections")]
    assert len(written) == 6
    rules = ["--isolated", "--target-version", "py311"]
    run_ruff(
        tmp_path,
        "check",
        *rules,
        "--extend-select",
        "I,UP,B,SIM,RUF,C4",
        *written,
        *inside,
        str(app / "models.py"),
    )
    run_ruff(tmp_path, "format", *rules, "--check", *written, *inside)


@pytest.fixture
def app(tmp_path: Path) -> AppConfig:
    module = ModuleType("shop")
    module.__path__ = [str(tmp_path)]
    return AppConfig("shop", module)


FUTURE = "from __future__ import annotations\n\n"
ORDER = Names("shop", "Order", "order")


def planned(app: AppConfig) -> Plan:
    return plan(app, ORDER, parse_fields(["title:str"]))


def test_nothing_that_exists_is_written_over(app: AppConfig, tmp_path: Path) -> None:
    planned(app).carry_out()
    before = {path: path.read_text() for path in tmp_path.rglob("*.py")}
    assert len(before) == 6
    with pytest.raises(CommandError, match=r"domain/order\.py exists already; nothing was written"):
        planned(app)
    assert {path: path.read_text() for path in tmp_path.rglob("*.py")} == before


def test_a_file_that_came_up_meanwhile_stays_and_the_others_go(app: AppConfig, tmp_path: Path) -> None:
    ready = planned(app)
    (tmp_path / "test_order.py").write_text("mine")
    with pytest.raises(CommandError, match="could not be written"):
        ready.carry_out()
    assert [path.name for path in tmp_path.rglob("*.py")] == ["test_order.py"]
    assert (tmp_path / "test_order.py").read_text() == "mine"


def test_packages_get_one_module_and_one_import_more(app: AppConfig, tmp_path: Path) -> None:
    for folder in ("domain", "projections", "models", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text('"""Ours."""\n\nfrom shop.zebra import stripes\n')
    ready = planned(app)
    assert {str(path.relative_to(tmp_path)) for path in ready.new} == {
        "domain/order.py", "projections/order.py", "models/order.py", "tests/test_order.py"
    }  # fmt: skip
    assert ready.changed[tmp_path / "models" / "__init__.py"] == (
        '"""Ours."""\n\nfrom shop.models.order import OrderRow as OrderRow\nfrom shop.zebra import stripes\n'
    )
    assert len(ready.changed) == 3


def test_a_module_in_the_place_of_a_package_is_left_alone(app: AppConfig, tmp_path: Path) -> None:
    (tmp_path / "domain.py").write_text("")
    with pytest.raises(CommandError, match=r"make it a package first: mkdir domain, move domain\.py"):
        planned(app)


def test_models_that_cannot_be_parsed_are_left_alone(app: AppConfig, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("class Broken(\n")
    with pytest.raises(CommandError, match=r"models\.py cannot be parsed"):
        planned(app)


def test_an_app_that_was_installed_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is installed, not yours"):
        plan(apps.get_app_config("contenttypes"), ORDER, parse_fields(["title:str"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "{line}\n"),
        ('"""Doc."""', '"""Doc."""\n{line}\n'),
        ("x = 1\n", "{line}\nx = 1\n"),
        (FUTURE + "from z import y\n", FUTURE + "{line}\nfrom z import y\n"),
        ("from a import (\n    b,\n)\n\nx = 1\n", "from a import (\n    b,\n)\n{line}\n\nx = 1\n"),
        ("{line}\n", "{line}\n"),
    ],
)  # fmt: skip
def test_an_import_finds_its_place(text: str, expected: str) -> None:
    line = "from m import n"
    assert with_import(text.format(line=line), line, Path("models.py")) == expected.format(line=line)


@pytest.mark.parametrize(
    "name", ["order", "Class", "None", "Ordér", "My Order", "Order.x", "../Order", "_Order", "9Lives", ""]
)
def test_a_name_that_no_class_and_module_can_have_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="an aggregate cannot be called"):
        names_for(apps.get_app_config("notes"), name)


@pytest.mark.parametrize(("name", "taken"), [("Note", "Note"), ("Title", "ChangeTitle"), ("Command", "Command")])
def test_a_name_that_is_taken_is_refused(name: str, taken: str) -> None:
    with pytest.raises(CommandError, match=taken):
        names_for(apps.get_app_config("notes"), name)


@pytest.mark.parametrize(
    "field",
    [
        *("owner", "owner:text", "owner:", ":str", "class:str", "id:str", "version:int", "apply:str", "save:str"),
        *(
            "date:date",
            "create:str",
            "change:str",
            "command_handler:str",
            "models:str",
            "ownér:str",
            "x y:str",
            "x;import os:str",
            "_x:str",
            "x_:str",
            "a__b:str",
        ),
    ],
)
def test_a_field_that_no_aggregate_can_have_is_refused(field: str) -> None:
    with pytest.raises(CommandError, match=r"field"):
        parse_fields([field])


def test_fields_are_told_apart() -> None:
    with pytest.raises(CommandError, match="'owner' is there twice"):
        parse_fields(["owner:str", "owner:int"])


def test_an_app_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match=r"'shop'.*add it to INSTALLED_APPS"):
        call_command("startaggregate", "shop", "Order")


def test_files_that_it_has_changed_are_as_they_were_when_another_cannot_be(tmp_path: Path) -> None:
    package, models = tmp_path / "__init__.py", tmp_path / "models.py"
    package.write_text("import this\n")
    models.mkdir()
    planned = Plan({tmp_path / "order.py": "one = 1\n"}, {package: "from shop import order\n", models: "two = 2\n"})
    with pytest.raises(CommandError, match="the files could not be written"):
        planned.carry_out()
    assert package.read_text() == "import this\n", "it would import what is gone"
    assert not (tmp_path / "order.py").exists()
