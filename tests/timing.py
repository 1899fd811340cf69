"""A pytest plugin that prints the time spent in each directory: by the clock, and of the processors."""

from __future__ import annotations

import resource
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator

import pytest

from tests import warm

PROCESSOR = "processor seconds"
_begun = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_begun] = _processor_seconds()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        item.user_properties.append((PROCESSOR, _processor_seconds() - item.stash[_begun]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts, clock, processor = Counter[str](), defaultdict[str, float](float), defaultdict[str, float](float)
    for report in _reports(terminalreporter):
        for directory in (_directory(report.nodeid), "all"):
            clock[directory] += report.duration
            if report.when == "teardown":
                counts[directory] += 1
                processor[directory] += sum(
                    float(str(value)) for name, value in report.user_properties if name == PROCESSOR
                )
    if counts["all"] > 1:
        terminalreporter.section("where the time goes")
        terminalreporter.write_line("   tests   seconds   of processors, with children that have ended")
        for directory in sorted(counts, key=lambda name: -clock[name]):
            terminalreporter.write_line(
                f"{counts[directory]:8,} {clock[directory]:9.1f} {processor[directory]:9.1f}   {directory}"
            )


def _reports(terminalreporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when in ("setup", "call", "teardown"):
                yield report


def _processor_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + warm.processor_seconds()


def _directory(nodeid: str) -> str:
    """
    >>> _directory("tests/unit/domain/test_messages.py::test_it")
    'tests/unit'
    """
    return "/".join(nodeid.split("::")[0].split("/")[:-1][:2])
