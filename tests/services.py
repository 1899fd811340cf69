"""A pytest plugin that starts PostgreSQL and Redis before Django reads its settings.

Each process of a parallel run has its own servers, PostgreSQL as a copy of one template: otherwise tests would see the
open transactions, locks and sessions of others. If a service cannot be started, tests that need it are skipped; with
``ENODE_REQUIRE_SERVICES=1`` the run fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from django.conf import settings

from sample_project.celery import SETTINGS_NAMED
from sample_project.embedded import Broker, Postgres, Redis, Server, ServerUnavailable, embedded_services
from sample_project.embedded_process import ServerProcess
from tests import warm
from tests.template import OWN, VARIABLE, new_postgres, template

BROKERS_SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.acceptance.settings"}
"""The sample's settings with few apps."""
REAL_QUEUE = {"SEND_IN_TESTS": True}
"""Settings for tests that send to a queue without ``inline()``. Most tests of the framework may do so."""
QUICK_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""Django's documentation recommends it for tests. The default hasher takes a third of a second for each password."""

QUICK_SESSIONS = "django.contrib.sessions.backends.signed_cookies"
"""A session in a table takes four statements at the login of each client, and one of each page."""

AnyServer = TypeVar("AnyServer", bound=Server)


class WarmBroker(Broker):
    """A broker of the sample, forked from a warm process."""

    def _spawn(self, command: Sequence[str | Path], log: int) -> ServerProcess:
        environment = {**os.environ, **BROKERS_SETTINGS}
        with os.fdopen(log, "ab", closefd=False) as file:
            return warm.start(command[1:], cwd=self.directory, env=environment, stdout=file, start_new_session=True)


_running = contextlib.ExitStack()
_missing = ""


def services_required() -> bool:
    return os.environ.get("ENODE_REQUIRE_SERVICES") == "1"


def only_distributes(config: pytest.Config) -> bool:
    """Return True in the process that hands the tests out to others (pytest-xdist) and runs none itself."""
    return bool(config.getoption("tx", None)) and not hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the services. This runs before the hook of pytest-django, which sets Django up if its settings are
    loaded."""
    global _missing
    if only_distributes(config):
        if not SETTINGS_NAMED:  # the import of the sample names them: workers would load them before their servers run
            os.environ.pop("DJANGO_SETTINGS_MODULE", None)
        _running.enter_context(warm.shared())
        if not os.environ.get(Postgres.variable):
            with contextlib.suppress(ServerUnavailable):  # each worker process will report it
                _running.enter_context(template())
        return
    try:
        _running.enter_context(embedded_services([new_postgres(), Redis()]))
    except ServerUnavailable as error:
        if services_required():
            raise pytest.UsageError(str(error)) from error
        _missing = str(error)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample_project.settings")
    if VARIABLE in os.environ:
        settings.DATABASES["default"]["TEST"] = {"TEMPLATE": OWN, "MIGRATE": False}
    settings.ENODE = {**settings.ENODE, **REAL_QUEUE}
    settings.PASSWORD_HASHERS = QUICK_HASHERS
    settings.SESSION_ENGINE = QUICK_SESSIONS


def pytest_unconfigure() -> None:
    _running.close()


def _url(variable: str) -> str:
    url = os.environ.get(variable)
    if not url:
        pytest.skip(f"{variable} is not set and no server could be started: {_missing}")
    return url


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The URL of the process's PostgreSQL. The tests' own database (fixture ``db``) is another one on this server."""
    return _url("DATABASE_URL")


@pytest.fixture(scope="session")
def redis_url() -> str:
    """The URL of the process's Redis. Each test must use names of its own."""
    return _url("REDIS_URL")


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Skip the test if a server cannot be started inside the block, unless services are required."""
    try:
        yield
    except ServerUnavailable as error:
        if services_required():
            raise
        pytest.skip(str(error))


def private(server: AnyServer) -> Iterator[AnyServer]:
    """Start a server that is `needed`, and close it at the end."""
    with needed():
        server.__enter__()
    with contextlib.closing(server):
        yield server


@pytest.fixture
def private_postgres() -> Iterator[Postgres]:
    """A server of the test's own, which it may stop, kill, pause and restart."""
    yield from private(new_postgres())


@pytest.fixture
def private_broker() -> Iterator[Broker]:
    """A broker of the test's own, which it may stop, kill, pause and restart."""
    yield from private(WarmBroker())


@pytest.fixture
def private_redis() -> Iterator[Redis]:
    """A server of the test's own, which it may stop, kill, pause and restart."""
    yield from private(Redis())
