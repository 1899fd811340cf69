"""A pytest plugin that says which tests stay together, and which begin, when several processes share them.

A file's tests stay in one process, as they share fixtures. Those of a directory that starts a Java or a browser do,
too. Acceptance tests take seconds each and share little, so they go to whoever is free; but those of shards share a
second PostgreSQL, which takes seconds to make.
"""

from __future__ import annotations

import os

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark", "tests/browser", "tests/acceptance/test_shards.py")
APART = ("tests/acceptance",)
LONGEST_FIRST = (*TOGETHER, *APART, "tests/chaos", "tests/docs", "sample_project", "tests/integration")
"""What is long must not begin at the end, when the other processes have nothing left to do."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return three processes a core: the tests wait for much of their time."""
    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 3 * (os.cpu_count() or 1)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out `group_of`, in the order of the tests, to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the order of the files within each directory: it is random."""
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
