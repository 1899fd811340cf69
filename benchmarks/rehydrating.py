"""Accounts with long histories made from the event store: with snapshots, without, and as ``eventsourcing`` does it.

``python -m benchmarks.rehydrating ACCOUNTS EVENTS`` is ours; it prints the seconds as JSON. Each load is that of a
command mailbox which has none of the accounts in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.figures import Figure, best, median
from benchmarks.peer import BEST, connection_settings
from benchmarks.workspace import PROJECT, Services, Workspace

BEHIND = 50
"""Versions that a snapshot is older than its aggregate: on average half of what lies between two of them."""


def run(services: Services, quick: bool) -> list[Figure]:
    accounts, events, rounds = (10, 2_000, 1) if quick else (50, 10_000, 3)
    with services.workspace() as workspace:
        ours = _ours(workspace, accounts, events)
    count = accounts * events
    note = f"{accounts} accounts of {events:,} events"
    peer = _peer(services, accounts, events, rounds)
    return [
        median("rehydrating", [count / seconds for seconds in ours["without"]], "events/s", note),
        median("rehydrating with snapshots", [count / seconds for seconds in ours["with"]], "events/s", note),
        median("rehydrating: one account", ours["one"], "ms", f"with its snapshot and {BEHIND} events"),
        best("peer rehydrating", [count / seconds for seconds in peer["plain"]], "events/s", note),
        best(
            "peer rehydrating, tuned",
            [count / seconds for seconds in peer["tuned"]],
            "events/s",
            f"{note}, its cycle collector as in our workers",
        ),
    ]


def _ours(workspace: Workspace, accounts: int, events: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.rehydrating", str(accounts), str(events)]
    done = subprocess.run(
        command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
    )
    seconds: dict[str, list[float]] = json.loads(done.stdout)
    return seconds


def _peer(services: Services, accounts: int, events: int, rounds: int) -> dict[str, list[float]]:
    with services.database(migrated=False) as url:
        settings = json.dumps({**connection_settings(url), **BEST})
        numbers = map(str, (accounts, events, rounds))
        command = [sys.executable, "-m", "benchmarks.peer_rehydrating", *numbers, settings]
        done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True)
    seconds: dict[str, list[float]] = json.loads(done.stdout)
    return seconds


def main(accounts: int, events: int) -> None:
    import django

    django.setup()
    from benchmarks.streams import history
    from enode_django.commanding.loading import AggregateLoader
    from enode_django.eventing.snapshot_making import SnapshotMaker
    from enode_django.eventstore.postgres import PostgresEventStore
    from enode_django.processors.garbage import collect_seldom
    from enode_django.snapshots.postgres import PostgresSnapshotStore

    store, snapshots = PostgresEventStore(), PostgresSnapshotStore()
    collect_seldom()  # as workers do
    ids = []
    for _ in range(accounts):  # one by one: the histories take more memory than their rows
        past = history(1, events - 1)
        records = [*past.opened, *past.deposited]
        ids.append(records[0].aggregate_root_id)
        for start in range(0, len(records), 1_000):
            store.append(records[start : start + 1_000])
    maker = SnapshotMaker(store, snapshots)
    for id in ids:
        made = maker.make(id, events - BEHIND)
        assert made is not None
        snapshots.save([made])

    def load(loader: AggregateLoader, wanted: list[str]) -> float:
        started = time.perf_counter()
        portions, large = loader.sorted_by_size(wanted)
        loaded = [history.rebuild() for portion in portions for history in loader.histories_of(portion).values()]
        loaded += [loader.load(id) for id in large]
        seconds = time.perf_counter() - started
        assert {(one.id, one.version) for one in loaded if one} == {(id, events) for id in wanted}
        return seconds

    plain, short = AggregateLoader(store), AggregateLoader(store, snapshots)
    for loader in (plain, short):
        load(loader, ids[:1])
    seconds = {
        "without": [load(plain, ids) for _ in range(3)],
        "with": [load(short, ids) for _ in range(9)],
        "one": [1_000 * load(short, ids[:1]) for _ in range(50)],
    }
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
