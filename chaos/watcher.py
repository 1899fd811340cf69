"""Sampling of the queue's offsets and owners during a round, by the transport's administration."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from chaos.journal import Journal
from chaos.names import COMMANDS, EVENTS
from enode_django.equeue.transport import Transport
from enode_django.exceptions import QueueError

EVERY = 0.5


class Watcher:
    """Writes a line to ``offsets.jsonl`` for each queue of each group, twice a second; ``with`` starts and stops it."""

    def __init__(self, transport: Transport, path: Path) -> None:
        self._transport = transport
        self._journal = Journal(path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._journal.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            for topic in (COMMANDS, EVENTS):
                with contextlib.suppress(QueueError):  # the queue is away
                    self._look(topic)

    def _look(self, topic: str) -> None:
        for group, state in self._transport.groups(topic).items():
            for queue, claim in state.claims.items():
                self._journal.note(
                    group=group,
                    topic=topic,
                    queue=queue,
                    committed=claim.committed,
                    owner=claim.owner,
                    epoch=claim.epoch,
                )
