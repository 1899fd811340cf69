"""The pauses of the broker's event loop while it deletes 100 GB, writes ten million receipts to checkpoints, and serves
reads of old messages."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.processors import BenchmarkError
from benchmarks.turns import Turn
from benchmarks.workspace import Services
from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.checkpoint import write_checkpoint
from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.index import Entry
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import encode_records
from enode_django.equeue.transports.broker import BrokerTransport

TOPIC, GROUP = "benchmark", "benchmark"
FILE = 256 << 20
PARTS = 4
"""Batches of each queue in a file that is due for deletion."""
COLD_FILE = 32 << 20
COLD_BATCHES, COLD_BYTES = 16, 16_000
RECEIPT = bytes(32)
PATIENCE = 120.0
SETTLING = 25.0
"""The least seconds. A checkpoint is written every ten."""
Late = list[float]
"""Milliseconds."""
Samples = dict[str, Any]
"""The output of one `stalling_broker`."""


def run(services: Services, quick: bool) -> list[Figure]:
    files, queues, receipts = (40, 100, 1_000) if quick else (400, 1_000, 10_000)
    with tempfile.TemporaryDirectory(prefix="enode-bench-") as home:
        directory = Path(home) / "broker"
        _prepare(directory, files, queues, receipts)
        samples, checkpoints = _measured(directory, Path(home), queues)
    note = f"{files * FILE / 1e9:.0f} GB due, {queues:,} queues, {receipts:,} receipts each, {checkpoints} checkpoints"
    pauses, idle = _own_pauses(samples["broker"]), _own_pauses(samples["idle"])
    with_neighbours, worked = _each_millisecond(samples["broker"]["late"]), samples["broker"]["worked"]
    print("the broker's longest turns, without what its thread waited for a core:")
    for turn in samples["broker"]["turns"]:
        print(f"  {Turn(**turn)}")
    return [
        Figure("broker's pauses, p99.9", _percentile(pauses, 999), "ms", note=note),
        Figure("broker's pauses, p99", _percentile(pauses, 990), "ms"),
        Figure("broker's longest pause", pauses[-1], "ms"),
        Figure("pauses with neighbours, p99.9", _percentile(with_neighbours, 999), "ms", note="no core was free, too"),
        Figure("pauses of an idle process, p99.9", _percentile(idle, 999), "ms", note="what the machine does to any"),
        Figure("loop's longest work at once", max(worked), "ms", note="processor time of its thread"),
    ]


def _own_pauses(samples: Samples) -> Late:
    """Return the pauses without the time that the thread waited for a core."""
    return _each_millisecond(
        max(0.0, pause - lost) for pause, lost in zip(samples["late"], samples["robbed"], strict=True)
    )


def _each_millisecond(late: Iterable[float]) -> Late:
    """Return, sorted, the waits of requests that arrive once per millisecond. A long pause delays many of them."""
    return sorted(pause - passed for pause in late for passed in range(max(1, int(pause))))


def _percentile(values: Late, per_mille: int) -> float:
    return values[len(values) * per_mille // 1_000]


# -- the broker's directory -------------------------------------------------------------------------------------------


def _prepare(directory: Path, files: int, queues: int, receipts: int) -> None:
    """Write sparse files of old, consumed messages, followed by messages that can be read."""
    _lay_old_files(directory, files, queues)
    store = MessageStore(directory, chunk_size=COLD_FILE, preload=0)
    store.open(restore=lambda state: None, replay=lambda *record: None, sent=lambda sent: None)
    state = BrokerState(store, patience=10.0)
    state.coordinator.create_topic(TOPIC, queues)
    kept = [Receipt(offset, RECEIPT) for offset in range(receipts)]
    for queue in range(queues):
        bounds = store.bounds(TOPIC, queue)
        lease = state.coordinator.acquire(GROUP, TOPIC, queue, "benchmark", 600.0, bounds=(0, bounds[1]), now=0.0)
        commit = Commit(lease.epoch, bounds[1], kept, receipts)
        state.coordinator.commit(GROUP, TOPIC, {queue: commit})
    body = encode_records([os.urandom(COLD_BYTES)])
    for _ in range(COLD_BATCHES):
        for first in range(0, queues, 100):
            store.append(TOPIC, [NewBatch(queue, 1, body) for queue in range(first, min(first + 100, queues))])
    store.close(state.plain())
    for path in directory.glob("messages/*.chunk"):
        _drop_from_memory(path)


def _lay_old_files(directory: Path, files: int, queues: int) -> None:
    messages, long_ago = directory / "messages", int((time.time() - 30 * 86_400) * 1_000)
    messages.mkdir(parents=True)
    for number in range(files):
        with open(messages / Chunk.name(number * FILE), "wb") as file:
            file.truncate(FILE)
    step = FILE // (queues * PARTS) // 8 * 8
    saved = []
    for queue in range(queues):
        words = array("Q")
        for number in range(files * PARTS):
            which, part = divmod(number, PARTS)
            position = which * FILE + (part * queues + queue) * step
            words.extend(Entry(number * 10, position, long_ago + number, 10, 1_000).words)
        path = directory / "queues" / TOPIC / str(queue) / f"{0:020}.index"
        path.parent.mkdir(parents=True)
        path.write_bytes(words)
        count, check = files * PARTS, zlib.crc32(words)
        saved.append((TOPIC, queue, count * 10, [[0, count, position, long_ago + count, check]]))
    write_checkpoint(directory / "checkpoint", files * FILE, long_ago + files * PARTS, saved, [])


def _drop_from_memory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


# -- the measurement --------------------------------------------------------------------------------------------------


def _measured(directory: Path, home: Path, queues: int) -> tuple[dict[str, Samples], int]:
    """Return the output of two `stalling_broker`, one of them idle, and the number of checkpoints."""
    files = {"broker": home / "samples", "idle": home / "idle"}
    with _ticking(files["broker"], directory) as (broker, location):
        if not location:
            raise BenchmarkError("the broker has not come up")
        with _ticking(files["idle"]) as (idle, _):
            checkpoints = _disturb(directory, location, queues)
            idle.send_signal(signal.SIGUSR1)
            idle.wait()
        broker.send_signal(signal.SIGUSR1)
    return {name: json.loads(file.read_text()) for name, file in files.items()}, checkpoints


@contextlib.contextmanager
def _ticking(samples: Path, *directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a `stalling_broker`; yield the process and the first line of its output."""
    command = [sys.executable, "-m", "benchmarks.stalling_broker", str(samples), *map(str, directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def _disturb(directory: Path, location: str, queues: int) -> int:
    """Run clients until all is deleted and read, and return the number of checkpoints written meanwhile."""
    is_over = threading.Event()
    work: Sequence[Callable[[BrokerTransport], object]] = [
        lambda transport: _read_cold(transport, queues),
        lambda transport: _send(transport, queues, is_over),
        lambda transport: _trim(transport, is_over),
    ]
    failures: list[BaseException] = []
    threads = [threading.Thread(target=_client, args=(location, each, failures)) for each in work]
    for thread in threads:
        thread.start()
    started, checkpoints, stamp = time.monotonic(), 0, _stamp(directory)
    with contextlib.closing(BrokerTransport(location)) as transport:
        while time.monotonic() - started < PATIENCE and not failures:
            time.sleep(0.25)
            checkpoints += stamp != (stamp := _stamp(directory))
            deleted = int(transport.status()["bytes"]) < FILE * 2
            if deleted and not threads[0].is_alive() and time.monotonic() - started > SETTLING and checkpoints >= 2:
                break
        else:
            failures.append(BenchmarkError(f"it was not done within {PATIENCE} s: {transport.status()}"))
    is_over.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return checkpoints


def _stamp(directory: Path) -> int:
    """Return a number that changes with each checkpoint."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # it is being renamed
            return (directory / "checkpoint").stat().st_ino


def _client(location: str, work: Callable[[BrokerTransport], object], failures: list[BaseException]) -> None:
    try:
        with contextlib.closing(BrokerTransport(location)) as transport:
            work(transport)
    except BaseException as error:
        failures.append(error)


def _read_cold(transport: BrokerTransport, queues: int) -> None:
    """Read all readable messages of each queue, ten queues at a time."""
    ends = transport.end_offsets(TOPIC)
    for first in range(0, queues, 10):
        offsets = {queue: ends[queue] - COLD_BATCHES for queue in range(first, min(first + 10, queues))}
        while any(offset < ends[queue] for queue, offset in offsets.items()):
            for pulled in transport.pull(TOPIC, offsets, limit=4, wait=1.0):
                offsets[pulled.queue] = pulled.offsets[-1] + 1


def _send(transport: BrokerTransport, queues: int, is_over: threading.Event) -> None:
    body = bytes(1_000)
    while not is_over.wait(0.02):
        transport.send(TOPIC, {queue: [body] for queue in random.sample(range(queues), 20)})


def _trim(transport: BrokerTransport, is_over: threading.Event) -> None:
    while not is_over.wait(0.2):
        transport.trim(TOPIC)
        transport.queues(TOPIC)
