from __future__ import annotations

import doctest
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from enode_django import ids
from enode_django.bus.results import CommandResult, CommandStatus, crash
from enode_django.commanding.decisions import Envelope, Finished
from enode_django.commanding.outcomes import refusal_of
from enode_django.equeue import histograms
from enode_django.equeue.histograms import INFINITE, SECONDS, Histogram
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.processors import statistics
from enode_django.processors.measuring import BatchMeter, PullTimes, outcomes_of
from enode_django.processors.statistics import OutcomeCounts, Statistics, add_reports, without_momentary
from enode_django.serialization.crashes import CommandCrashed
from sample_project.bank.domain import AccountIsClosed, Deposit

NOW = datetime.now(UTC)


def window(committed: int = 0) -> OffsetWindow:
    return OffsetWindow("commands", 0, epoch=1, committed=committed, deadline=0.0)


def finished(
    *, version: int | None = 1, status: CommandStatus | None = None, id: str = "c", at: OffsetWindow | None = None
) -> Finished:
    envelope = Envelope(id, "a", "bank.Deposit", None, window=at)
    if status is not None:
        return Finished(envelope, None, CommandResult(status=status, command_id=id, aggregate_root_id="a"))
    return Finished(envelope, StreamRecord("a", version, id, "bank.Account", "bank.Deposit", NOW, b"", b""), None)


@pytest.mark.parametrize("module", [histograms, statistics, ids])
def test_examples_of_the_docstrings_are_right(module: object) -> None:
    done = doctest.testmod(module)  # type: ignore[arg-type]
    assert done.attempted > 0
    assert done.failed == 0


def test_values_on_a_bound_count_as_not_above_it_and_later_buckets_contain_the_earlier_ones() -> None:
    histogram = Histogram(SECONDS)
    for value in (0.001, 0.0011, 59.0, 1e6):
        histogram.add(value)
    buckets = histogram.as_map()["buckets"]
    assert (buckets["0.001"], buckets["0.0025"], buckets["60"], buckets[INFINITE]) == (1, 2, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())


def test_outcomes_are_counted_as_their_senders_see_them() -> None:
    batch = [
        finished(version=1),
        finished(version=None),
        finished(status=CommandStatus.NOTHING_CHANGED),
        finished(status=CommandStatus.FAILED),
        finished(status=CommandStatus.REFUSED),
        finished(version=2),
        Finished(
            Envelope("crashed", "x", "bank.Deposit", None),
            None,
            crash("crashed", "x", KeyError("k"), with_traceback=False, is_told=False),
        ),
    ]
    assert outcomes_of(batch) == OutcomeCounts(succeeded=2, unchanged=1, refused=2, failed=1, crashed=1)


def test_a_crash_that_is_stored_for_its_process_manager_counts_as_failed() -> None:
    command = Deposit("x", amount=Decimal(1))
    envelope = Envelope("c", "x", "bank.Deposit", command, crash_handler="bank.transfers")
    stored = [
        refusal_of(envelope, None, refusal, 10_000)
        for refusal in (CommandCrashed.of(command, KeyError("k"), sender="bank.transfers"), AccountIsClosed("closed"))
    ]
    finished = [Finished(envelope, record, None) for record in stored]
    assert outcomes_of(finished) == OutcomeCounts(succeeded=0, unchanged=0, refused=1, failed=1)


def test_a_command_was_pulled_when_the_pull_that_brought_it_returned() -> None:
    times, queue = PullTimes(), window()
    assert times.of(queue, 0) is None
    times.note(queue, 0, 10.0)
    times.note(queue, 500, 11.0)
    assert [times.of(queue, offset) for offset in (0, 499, 500, 9_999)] == [10.0, 10.0, 11.0, 11.0]
    assert times.of(window(), 0) is None


def test_pulls_that_are_committed_are_forgotten() -> None:
    times, queue = PullTimes(), window()
    for offset in range(3):
        queue.add([offset])
        times.note(queue, offset, float(offset))
        queue.finish(offset)
    assert [times.of(queue, offset) for offset in range(3)] == [None, None, 2.0]


def test_one_command_of_a_batch_is_measured() -> None:
    figures, queue = Statistics(), window()
    meter = BatchMeter(figures)
    meter.pulled(queue, [0, 1, 2])
    meter.stored([finished(id=new_id(), at=queue) for _ in range(3)], 1, 0.002)
    meter.stored([], 2, None)
    report = figures.report()
    assert (report["finished"], report["succeeded"], report["batches"], report["conflicts"]) == (3, 3, 2, 3)
    assert report["batch_sizes"]["sum"] == 3
    assert report["store_seconds"]["sum"] == 0.002
    for name in ("pulled_to_durable", "sent_to_durable"):
        assert report[name]["buckets"][INFINITE] == 1
        assert 0 <= report[name]["sum"] < 60


@pytest.mark.parametrize(
    "id", ["order-17", "0" * 36, "ffffffff-ffff-7fff-8fff-ffffffffffff", "00000000-0000-7000-8000-000000000000"]
)
def test_an_id_that_tells_no_time_is_not_measured(id: str) -> None:
    figures = Statistics()
    BatchMeter(figures).stored([finished(id=id)], 0, None)
    assert figures.report()["sent_to_durable"]["buckets"][INFINITE] == 0


def test_a_generated_id_tells_when_it_was_made() -> None:
    before = time.time()
    made = ids.made_at(new_id())
    assert made is not None
    assert before - 0.002 <= made <= time.time() + 0.002


def test_lag_is_the_age_of_the_oldest_unhandled_stream_and_the_largest_of_all_workers() -> None:
    behind, further, idle = (Statistics(clock=lambda: 1_000.0) for _ in range(3))
    behind.set_subscriber("a", 5, 0, 990.0)
    further.set_subscriber("a", 1, 0, 970.0)
    idle.set_subscriber("a", 2, 1)
    total = add_reports(one.report() for one in (behind, further, idle))
    assert total["subscribers"] == {"a": {"handled": 8, "parked": 1, "lag": 30.0}}


def test_a_worker_that_has_ended_leaves_its_counts_and_no_gauges() -> None:
    ended = Statistics(clock=lambda: 1_000.0)
    ended.gauges["unfinished"] = ended.gauges["cached_aggregates"] = lambda: 7
    ended.mailboxes = lambda: {"commands-0": {"max_offset": 9, "consume_offset": 7}}
    ended.count_batch(3, 0)
    ended.set_subscriber("a", 5, 0, 990.0)
    left = without_momentary(ended.report())
    assert (left["finished"], left["subscribers"]) == (3, {"a": {"handled": 5, "parked": 0}})
    assert not {"unfinished", "cached_aggregates"} & left.keys()
    assert left["mailboxes"] == {"commands-0": {}}
    living = Statistics()
    living.mailboxes = lambda: {"commands-0": {"max_offset": 3, "consume_offset": 2}}
    assert add_reports([left, living.report(), living.report()])["mailboxes"] == {
        "commands-0": {"max_offset": 6, "consume_offset": 4}
    }
