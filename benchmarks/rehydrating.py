"""Loading of accounts with long histories: with snapshots, without, and by ``eventsourcing``.

``python -m benchmarks.rehydrating ACCOUNTS EVENTS`` is ours. For each line of its input (``without``, ``with``
snapshots, ``one`` account) it prints the seconds of one load by a command mailbox that has none of the accounts in
memory.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.peer import BEST, connection_settings
from benchmarks.workspace import Services

BEHIND = 50
"""The versions after a snapshot: on average half of those between two snapshots."""


def run(services: Services, quick: bool) -> list[Figure]:
    accounts, events, rounds = (10, 2_000, 1) if quick else (50, 10_000, 5)
    seconds: dict[str, list[float]] = {}
    with (
        services.workspace() as workspace,
        services.database(migrated=False) as url,
        Asked("benchmarks.rehydrating", accounts, events, env=workspace.environment) as ours,
        Asked(
            "benchmarks.peer_rehydrating", accounts, events, json.dumps({**connection_settings(url), **BEST})
        ) as peer,
    ):
        # In turn, because the speed of a machine varies.
        kinds = [(ours, "without")] * rounds + [(peer, "plain")] * rounds
        kinds = [kind for pair in zip(kinds[:rounds], kinds[rounds:], strict=True) for kind in pair]
        kinds += [(ours, "with")] * 9 + [(ours, "one")] * 50 + [(peer, "tuned")] * rounds
        for process, kind in kinds:
            seconds.setdefault(kind, []).append(process.ask(kind))
    count = accounts * events
    rates = {kind: [count / each for each in taken] for kind, taken in seconds.items()}
    note = f"{accounts} accounts of {events:,} events"
    tuned = f"{note}, its cycle collector as in our workers"
    return [
        median("rehydrating", rates["without"], "events/s", note),
        median("rehydrating with snapshots", rates["with"], "events/s", note),
        median(
            "rehydrating: one account",
            [1_000 * each for each in seconds["one"]],
            "ms",
            f"with its snapshot and {BEHIND} events",
        ),
        median("peer rehydrating", rates["plain"], "events/s", f"{note}, in turns with ours"),
        median("peer rehydrating, tuned", rates["tuned"], "events/s", tuned),
    ]


def main(accounts: int, events: int) -> None:
    import django

    django.setup()
    from benchmarks.streams import history
    from enode_django.concurrency.garbage import collect_seldom
    from enode_django.eventstore.postgres import PostgresEventStore
    from enode_django.repository.loading import AggregateLoader
    from enode_django.repository.postgres import PostgresSnapshotStore
    from enode_django.repository.snapshot_making import SnapshotMaker

    store, snapshots = PostgresEventStore(), PostgresSnapshotStore()
    collect_seldom()  # as workers do
    ids = []
    for _ in range(accounts):  # one by one, because histories take more memory than their rows
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

    loaders = {"without": AggregateLoader(store), "with": AggregateLoader(store, snapshots)}
    for loader in loaders.values():
        load(loader, ids[:1])
    for kind in map(str.strip, sys.stdin):
        print(load(loaders["with"], ids[:1]) if kind == "one" else load(loaders[kind], ids), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
