"""The configuration of a session, and the errors if it cannot start."""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from enode_django.exceptions import JobCancelled, SparkUnavailable
from enode_django.jobs import request_cancel, running_job
from enode_django.spark import java, packages, session
from tests import warm
from tests.java import quick_options
from tests.meta.tree import ROOT


def java_that_says(directory: Path, text: str) -> None:
    (directory / "bin").mkdir()
    (directory / "bin" / "java").write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    (directory / "bin" / "java").chmod(0o755)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11; install Java 17"),
        ('java version "1.8.0_392"', "is Java 1; install Java 17"),
        ("no version", "gives no version but 'no version"),
    ],
)
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    java_that_says(tmp_path, said)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=message) as caught:
        java.check_java()
    assert "openjdk-17-jre-headless" in str(caught.value)


def test_a_java_that_is_new_enough_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, 'openjdk version "21" 2023-09-19')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java.check_java()


def test_a_missing_java_is_said_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(SparkUnavailable, match="cannot be run; install Java 17"):
        session._started("local[1]", tmp_path)


def test_a_java_that_ends_before_spark_has_started_is_said(tmp_path: Path) -> None:
    """The test runs Spark in its own process: Spark may already run in this one."""
    java_that_says(tmp_path, 'openjdk version "17.0.9" 2023-10-17')
    code = """if True:
        import django
        django.setup()
        from enode_django.exceptions import SparkUnavailable
        from enode_django.spark.session import spark_session
        try:
            with spark_session("local[1]"):
                print("started")
        except SparkUnavailable as error:
            print("said:", error)
    """
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "sample_project.settings", "JAVA_HOME": str(tmp_path)}
    done = warm.run(["-c", code], cwd=ROOT, env=environment)
    assert done.stdout.splitlines()[-1].startswith("said: Spark does not start on 'local[1]'; its log says why: ")


def test_an_error_of_java_has_its_text_after_the_end_of_the_session() -> None:
    code = """if True:
        import django
        django.setup()
        from enode_django.exceptions import SparkFailed
        from enode_django.spark.session import spark_session
        try:
            with spark_session("local[1]") as spark:
                spark._jvm.java.lang.Integer.parseInt("no number")
        except SparkFailed as error:
            print("said:", error, error.__cause__)
    """
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "sample_project.settings",
        "JAVA_TOOL_OPTIONS": quick_options(),
    }
    done = warm.run(["-c", code], cwd=ROOT, env=environment, seconds=600)
    assert "said: " in done.stdout, done.stderr
    assert 'NumberFormatException: For input string: "no number"' in done.stdout
    assert "None" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_what_to_install_is_said_where_a_package_is_missing(missing: str) -> None:
    code = f"""if True:
        import sys
        sys.modules[{missing!r}] = None
        from enode_django.exceptions import SparkUnavailable
        try:
            import enode_django.spark.session
        except SparkUnavailable as error:
            print(error)
    """
    done = warm.run(["-c", code], cwd=ROOT)
    assert done.stdout.startswith(f"{missing} is not installed")
    assert 'pip install "enode_django[spark]"' in done.stdout


def test_nothing_else_needs_spark() -> None:
    code = """if True:
        import importlib, pkgutil, sys
        for name in ("pyspark", "pandas", "pyarrow"):
            assert name not in sys.modules, "a module that is imported in advance needs it"
            sys.modules[name] = None
        import django
        django.setup()
        import enode_django
        from django.core.management import call_command
        call_command("check")
        for module in pkgutil.walk_packages(enode_django.__path__, "enode_django.", lambda name: None):
            if not module.name.startswith("enode_django.spark"):
                importlib.import_module(module.name)
        print("imported", len(sys.modules))
    """
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    done = warm.run(["-c", code], cwd=ROOT, env=environment)
    assert "imported" in done.stdout, done.stderr


def test_packages_of_the_project_are_sent_and_installed_ones_are_not(tmp_path: Path) -> None:
    assert {"enode_django", "sample_project"} <= packages.own_packages().keys()
    assert not {"django", "rest_framework"} & packages.own_packages().keys()
    archive = packages.zip_packages(tmp_path)
    assert archive is not None
    names = zipfile.ZipFile(archive).namelist()
    assert "enode_django/spark/source.py" in names
    assert "sample_project/bank/domain/accounts.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("/")]
    assert packages.zip_packages(tmp_path) == archive, "the same contents have the same name"


def test_processes_elsewhere_get_the_name_of_the_settings_and_nothing_else(tmp_path: Path) -> None:
    assert session.environment("spark://host:7077", tmp_path) == {"DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    assert "spark.driver.host" not in session.defaults("yarn", tmp_path)
    for master in ("local", "local[*]", "local-cluster[2,1,1024]"):
        assert session.environment(master, tmp_path)["PYSPARK_PYTHON"] == sys.executable
        assert session.defaults(master, tmp_path)["spark.driver.host"] == "127.0.0.1"


def test_a_session_that_is_still_starting_is_given_up_when_the_job_has_to_stop(transactional_db: None) -> None:
    """The next one begins when that attempt has come to its end."""
    may_start, ended = threading.Event(), threading.Event()

    def never() -> SparkSession:
        may_start.wait()
        ended.set()
        raise SparkUnavailable("too late")

    def start_in_a_job() -> None:
        with running_job("tests", "starting", lease=3600) as job:
            request_cancel(job.id)
            session._start(never)

    with pytest.raises(JobCancelled):
        start_in_a_job()
    assert not ended.is_set()
    may_start.set()

    def other() -> SparkSession:
        assert ended.is_set()
        raise SparkUnavailable("another")

    with pytest.raises(SparkUnavailable, match="another"):
        session._start(other)
