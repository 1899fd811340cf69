"""One session of Spark for all tests: starting it takes seconds. Its processes use the tests' own database."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings
from pyspark.sql import SparkSession

from enode_django.exceptions import SparkUnavailable
from enode_django.spark.session import spark_session
from tests.java import INTERPRETED, quick_options
from tests.services import services_required

SECONDS = 600
"""Seconds for each test. The first tests of a session wait until several processes have loaded much."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(own) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


def url_of_database(name: str) -> str:
    """Return the URL of a database on the server that the run shares."""
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file. A process that is started meanwhile writes there for ever."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="session")
def spark_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the file ``stderr`` of all processes of Spark."""
    return tmp_path_factory.mktemp("spark")


def _with_path_to_daemons() -> str:
    """Return a path for Python that begins with the directory of `sitecustomize`."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([str(Path(__file__).with_name("daemons")), *before])


@pytest.fixture(scope="package")
def spark(postgres_url: str, django_db_setup: None, spark_output: Path) -> Iterator[SparkSession]:
    config = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": quick_options(),
        **INTERPRETED,
        "spark.sql.shuffle.partitions": "2",
    }
    database = url_of_database(str(connection.settings_dict["NAME"]))
    with contextlib.ExitStack() as stack:
        with (
            environment(DATABASE_URL=database, PYTHONPATH=_with_path_to_daemons()),
            override_settings(ENODE={**settings.ENODE, "SPARK": {"CONFIG": config}}),
            standard_error_to(spark_output / "stderr"),
        ):
            try:
                session = stack.enter_context(spark_session("local[2]"))
            except SparkUnavailable as error:
                if services_required():
                    raise
                pytest.skip(str(error))
        yield session
