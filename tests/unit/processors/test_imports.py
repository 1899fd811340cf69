"""The imports of a worker's process in a project that uses none of the optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enode_django.processors.control import Role
from enode_django.processors.worker import PIPELINES

PROJECT = Path(__file__).resolve().parents[3]
SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}}
INSTALLED_APPS = ["django.contrib.postgres", "enode_django", "shop"]
"""
LOADS = """
import importlib, sys
import django
django.setup()
from enode_django.management.commands import runprocessors
from enode_django.runtime import make_store, make_transport
from enode_django.conf import conf
from enode_django.processors.statistics import Statistics
module = importlib.import_module(sys.argv[1])
transport, store = make_transport(), make_store()
if "event" in sys.argv[1]:
    module.EventPipeline(conf(), transport, store, owner="x", statistics=Statistics())
else:
    module.make_pipeline(conf(), transport, store, owner="x", markers=[memoryview(bytearray(8)).cast("q")],
                    statistics=Statistics())
print(*sys.modules)
"""
NEEDLESS = [
    *(
        "celery",
        "redis",
        "rest_framework",
        "drf_spectacular",
        "prometheus_client",
        "opentelemetry",
        "pyspark",
        "pandas",
    ),
    *("psycopg_pool", "django.contrib.admin", "enode_django.admin", "enode_django.api.urls", "enode_django.spark"),
    *("enode_django.equeue.broker.server", "enode_django.monitoring.prometheus", "enode_django.testing"),
]


OWN = """
import django
django.setup()
from enode_django.eventing.registry import subscribers
print(*(one.name for one in subscribers.known()))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    return tmp_path


def words(project: Path, code: str, *arguments: str) -> list[str]:
    """Return the words that the code prints in a process of the project."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=project,
        env={"PYTHONPATH": str(PROJECT), "DJANGO_SETTINGS_MODULE": "shop_settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("role", Role)
def test_a_worker_imports_only_what_its_settings_use(project: Path, role: Role) -> None:
    imported = set(words(project, LOADS, PIPELINES[role]))
    assert PIPELINES[role] in imported
    assert sorted(imported.intersection(NEEDLESS)) == []


def test_every_process_knows_the_subscriber_of_the_package(project: Path) -> None:
    """Otherwise `check --database` and `migrate` warn that no code owns its subscription."""
    assert words(project, OWN) == ["enode.snapshots"]
