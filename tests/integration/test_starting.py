"""Discovery and system checks before the first command, in processes of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from enode_django.conf.groups import DISCOVERED_MODULES
from tests import warm
from tests.meta.tree import ROOT

SETTINGS = """
from tests.acceptance.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
ENODE = {enode!r}
"""
TWO_HANDLERS = """
from enode_django import Command, command_handler

class Double(Command):
    pass

@command_handler(Double)
def one(command, context): ...

@command_handler(Double)
def two(command, context): ...
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app of its own in a project of its own; nothing of it reaches the modules of this process."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    return tmp_path / "shop"


def run(app: Path, *arguments: str, **enode: object) -> subprocess.CompletedProcess[str]:
    return run_with(app, enode, *arguments)


def run_with(app: Path, enode: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    (app.parent / "shop_settings.py").write_text(SETTINGS.format(enode=enode))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{app.parent}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "shop_settings",
    }
    return warm.run(arguments, cwd=app.parent, env=environment)


@pytest.mark.parametrize("given", [None, ("rules", "domain")])
def test_the_modules_of_the_setting_are_imported_from_every_app(app: Path, given: tuple[str, ...] | None) -> None:
    for module in (*DISCOVERED_MODULES, "rules"):
        (app / f"{module}.py").touch()
    code = "import sys, django; django.setup(); print(*[m[5:] for m in sys.modules if m.startswith('shop.')])"
    done = run(app, "-c", code, **({} if given is None else {"AUTODISCOVER_MODULES": given}))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(DISCOVERED_MODULES if given is None else given)


@pytest.mark.parametrize("options", [(), ("--reload",)])
def test_two_handlers_for_a_command_are_refused_before_anything_starts(app: Path, options: tuple[str, ...]) -> None:
    (app / "command_handlers.py").write_text(TWO_HANDLERS)
    done = run(app, str(ROOT / "manage.py"), "runprocessors", *options)
    assert done.returncode == 1
    assert "(enode_django.E010) Double has several handlers: " in done.stderr
    assert "workers" not in done.stdout


def test_an_unknown_setting_is_refused_before_anything_starts(app: Path) -> None:
    done = run(app, str(ROOT / "manage.py"), "runprocessors", COMAND_TOPIC="x")
    assert done.returncode == 1
    assert "(enode_django.E002) ENODE has the unknown key 'COMAND_TOPIC'." in done.stderr


@pytest.mark.parametrize("enode", [None, "redis://127.0.0.1:6379/0", {"QUEUE": "redis://127.0.0.1:6379/0"}], ids=str)
def test_settings_that_are_no_dictionary_are_refused_by_the_check_and_not_by_a_traceback(
    app: Path, enode: object
) -> None:
    done = run_with(app, enode, str(ROOT / "manage.py"), "check")
    assert done.returncode == 1
    assert "(enode_django.E001) ENODE" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_of_the_transport_is_refused_before_anything_starts(app: Path) -> None:
    done = run(app, str(ROOT / "manage.py"), "runprocessors", QUEUE={"OPTIONS": {"prefx": "x"}})
    assert done.returncode == 1
    assert "(enode_django.E081) ENODE['QUEUE'] cannot be used: " in done.stderr
    assert "has the key 'prefx', which " in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_that_are_no_list_are_refused_by_the_check_and_not_by_a_traceback(app: Path) -> None:
    done = run(app, str(ROOT / "manage.py"), "check", AUTODISCOVER_MODULES=5)
    assert done.returncode == 1
    assert "(enode_django.E085) ENODE['AUTODISCOVER_MODULES'] is 5" in done.stderr
    assert "Traceback" not in done.stderr
