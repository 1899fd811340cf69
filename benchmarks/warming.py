"""The benefit and the cost of shared states: a restart with many aggregates, and the load of `throughput`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError, Processors, timed_run, wait_for
from benchmarks.throughput import check_stored
from benchmarks.workspace import PROJECT, Services, Workspace

SNAPSHOTS = "enode.snapshots"
"""The subscriber that makes snapshots."""
EVENTS_EACH = 30
BEHIND = 1
"""The streams of an account after its shared state."""
PORTION = 1_000
"""The accounts that are written at once."""
LOOK = 0.02
WINDOW = 0.5
"""The seconds over which a rate is measured."""
TAIL = 0.3
"""The share of the last commands, whose rate is the steady one."""


def run(services: Services, quick: bool) -> list[Figure]:
    accounts = 20_000 if quick else 100_000
    ids = loads.account_ids(accounts)
    messages = loads.deposits(ids, 6 * accounts)
    cold: list[float] = []
    warm: list[float] = []
    steady: list[float] = []
    for shared, seconds in ((False, cold), (True, warm)):
        with services.workspace() as workspace:
            workspace.enode["AGGREGATE_CACHE"] = _shared(workspace) if shared else {}
            _make_past(workspace, ids)
            until_half, rate = _restart(workspace, messages)
            check_stored(workspace, accounts * EVENTS_EACH + len(messages))
        seconds.append(until_half)
        steady.append(rate)
    note = f"deposits over {accounts:,} accounts of {EVENTS_EACH} events"
    return [
        median("steady rate", steady, "commands/s", note),
        median("half of it from the store", cold, "s", "since the workers may begin"),
        median("half of it from shared states", warm, "s", f"each {BEHIND} version behind"),
    ]


def run_cost(services: Services, quick: bool) -> list[Figure]:
    """Measure all variants in turn, in rounds long enough to write states several times and make snapshots twice."""
    count, rounds = (100_000, 1) if quick else (500_000, 3)
    accounts = loads.account_ids(count // 200)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    cache: list[tuple[float, float]] = []
    both: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    written: list[float] = []
    made: list[float] = []
    for _ in range(rounds):
        with services.workspace(SNAPSHOTS={"ENABLED": False}) as workspace:
            plain.append(_spread(workspace, opening, messages))
        with services.workspace() as workspace:
            workspace.enode["AGGREGATE_CACHE"] = _shared(workspace)
            cache.append(_spread(workspace, opening, messages))
            written.append(workspace.shared_states())
        with services.workspace((SNAPSHOTS,)) as workspace:
            workspace.enode["AGGREGATE_CACHE"] = _shared(workspace)
            with Processors(workspace, 1, role="event"):
                both.append(_spread(workspace, opening, messages))
                made.append(workspace.snapshots())
    note = f"{count:,} deposits over {len(accounts):,} accounts"
    return [
        median("spread, nothing kept", [count / seconds for seconds, _ in plain], "commands/s", note),
        median("spread, with shared states", [count / seconds for seconds, _ in cache], "commands/s"),
        median(
            "spread, with a process that makes snapshots, too",
            [count / seconds for seconds, _ in both],
            "commands/s",
            "which needs the cores, too",
        ),
        median("workers, nothing kept", [1e6 * cpu / count for _, cpu in plain], "µs", "processor time a command"),
        median("workers, with shared states", [1e6 * cpu / count for _, cpu in cache], "µs", "the same"),
        median("workers, with both", [1e6 * cpu / count for _, cpu in both], "µs", "the maker's process left out"),
        median("snapshots at the end", made, "rows"),
        median("shared states at the end", written, "accounts"),
    ]


def _spread(workspace: Workspace, opening: loads.Messages, messages: loads.Messages) -> tuple[float, float]:
    """Return the seconds until the last stream is published, and the workers' processor time meanwhile."""
    with Processors(workspace) as processors:
        workspace.send(opening)
        processors.wait_published(len(opening))
        before = processors.processor_seconds()
        seconds = timed_run(workspace, processors, messages, len(messages))
        used = processors.processor_seconds() - before
    check_stored(workspace, len(opening) + len(messages))
    return seconds, used


def _shared(workspace: Workspace) -> dict[str, str]:
    return {"LOCATION": workspace.redis_url, "PREFIX": workspace.prefix}


def _make_past(workspace: Workspace, ids: Sequence[str]) -> None:
    """Make the history in a process with the workspace's settings and database."""
    command = [sys.executable, "-m", "benchmarks.warming"]
    subprocess.run(command, cwd=PROJECT, env=workspace.environment, input=json.dumps(ids), check=True, text=True)


def _restart(workspace: Workspace, messages: loads.Messages) -> tuple[float, float]:
    """Return the seconds until half the steady rate is reached, and the steady rate."""
    with Processors(workspace) as processors:
        processors.freeze()
        workspace.send(messages)
        workspace.checkpoint()
        started = time.perf_counter()
        processors.thaw()
        looks = _watch(workspace, processors, started, len(messages))
    return _judge(looks, len(messages))


def _watch(workspace: Workspace, processors: Processors, started: float, count: int) -> list[tuple[float, int]]:
    """Return samples (seconds, published) until all are published."""
    looks = [(0.0, 0)]

    def all_are_published() -> bool:
        if time.perf_counter() - started - looks[-1][0] >= LOOK:
            processors.check()
            published = workspace.published()
            looks.append((time.perf_counter() - started, published))
        return looks[-1][1] >= count

    wait_for(f"{count} streams are published", all_are_published)
    return looks


def _judge(looks: Sequence[tuple[float, int]], count: int) -> tuple[float, float]:
    began, at_first = next(look for look in looks if look[1] >= (1 - TAIL) * count)
    ended, at_last = looks[-1]
    steady = (at_last - at_first) / (ended - began)
    first = 0
    for seconds, published in looks:
        while seconds - looks[first + 1][0] >= WINDOW:
            first += 1
        since, before = looks[first]
        if seconds - since >= WINDOW and (published - before) / (seconds - since) >= steady / 2:
            return seconds, steady
    raise BenchmarkError("half the steady rate was never reached")


def main(ids: Sequence[str]) -> None:
    """Give each account the same history by COPY, and save its state if there are shared states."""
    import django

    django.setup()
    from django.db import connection

    from benchmarks.raw_copy import encoded_rows
    from benchmarks.streams import history
    from enode_django.eventstore.copy_format import HEADER, TRAILER
    from enode_django.eventstore.statements import COPY
    from enode_django.repository.loading import replay_records
    from enode_django.repository.state import snapshot_of
    from enode_django.runtime import make_states

    records = history(1, EVENTS_EACH - 1).records
    model = records[0].aggregate_root_id
    past = b"".join(encoded_rows(records))
    states = make_states()
    last = records[-1 - BEHIND]
    with connection.cursor() as cursor:
        for start in range(0, len(ids), PORTION):
            portion = ids[start : start + PORTION]
            with cursor.copy(COPY) as copy:
                copy.write(HEADER + b"".join(past.replace(model.encode(), id.encode()) for id in portion) + TRAILER)
            if states is None:
                continue
            made = []
            for id in portion:
                of_account = (record._replace(aggregate_root_id=id) for record in records[:-BEHIND])
                account = replay_records(of_account)
                assert account is not None
                made.append(snapshot_of(account, last.command_id)._replace(created_at=last.created_at))
            states.save(made)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE enode_django_eventstream")


if __name__ == "__main__":
    main(json.load(sys.stdin))
