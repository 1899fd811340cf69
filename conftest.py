from __future__ import annotations

import functools
import gc
import signal
import socket
from collections.abc import Generator, Iterator

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

from enode_django.concurrency.outages import outages

pytest_plugins = [
    "tests.services",
    "tests.distributing",
    "tests.timing",
    "tests.emptying",
    "enode_django.pytest_plugin",
]

# A slow machine is not a defect: examples may take their time, to make as to run.
STEADY = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("steady", deadline=None, print_blob=True, suppress_health_check=STEADY)
settings.load_profile("steady")


def pytest_configure() -> None:
    # A shell lets processes ignore Ctrl-C that it runs in the background; those under test hear it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # For each connection redis-py reads its version from its installed files, which takes a millisecond.
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


@pytest.fixture(autouse=True)
def no_outages() -> None:
    """Forget the outages of earlier tests."""
    outages.forget()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at modules and tests, a million objects that all stay: it would take
    three seconds of each process of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections. It stays bound, so that no other server gets it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="session")
def django_db_setup(postgres_url: str, django_db_setup: None) -> None:
    """Without a server, skip before Django tries to make its test database."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lone surrogates, which some tests log on purpose, cannot go from a process of the run to the one that reports."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
