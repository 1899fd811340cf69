"""A pytest plugin that decides which tests stay in one process, and which begin, in a parallel run.

A file's tests stay in one process, since they share fixtures. So do the tests of a directory that starts Java or a
browser; those of a cluster of Spark need not wait for the others. Acceptance tests take seconds each and share little,
so each goes to the next free process; but those of shards share a second PostgreSQL, which takes seconds to make.
"""

from __future__ import annotations

import os

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark/test_cluster.py", "tests/spark", "tests/browser", "tests/acceptance/test_shards.py")
APART = ("tests/acceptance",)
LONGEST_FIRST = (
    *(*TOGETHER, *APART, "tests/chaos", "tests/docs", "sample_project", "tests/integration", "tests/rebuilding"),
    *("tests/equeue/test_redis_failover.py", "tests/equeue/test_redis_dead_master.py", "tests/jobs"),
)
"""Long tests begin first. Otherwise the other processes would be idle while one works on a long test."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return three processes per core, since the tests spend much of their time waiting."""
    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 3 * (os.cpu_count() or 1)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the groups of `group_of`, in the order of the tests, to the next free process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by `rank`. The random order within a rank stays."""
    items.sort(key=lambda item: rank(item.nodeid))


def group_of(nodeid: str) -> str:
    """Return the name of the tests that stay in one process with this one.

    >>> group_of("tests/spark/test_sink.py::test_it"), group_of("tests/unit/test_ids.py::test_it")
    ('tests/spark', 'tests/unit/test_ids.py')
    >>> group_of("tests/acceptance/test_shards.py::test_it"), group_of("tests/acceptance/test_broker.py::test_it")
    ('tests/acceptance/test_shards.py', 'tests/acceptance/test_broker.py::test_it')
    """
    file = nodeid.split("::")[0]
    together = _among(file, TOGETHER)
    if together is None and _among(file, APART) is not None:
        return nodeid
    return together or file


def rank(nodeid: str) -> int:
    path = _among(nodeid.split("::")[0], LONGEST_FIRST)
    return LONGEST_FIRST.index(path) if path is not None else len(LONGEST_FIRST)


def _among(file: str, paths: tuple[str, ...]) -> str | None:
    """Return the first of the paths, of files or directories, that the file is or lies in."""
    return next((path for path in paths if f"{file}/".startswith(f"{path}/")), None)
