"""Sessions that write to the event store at the same time, and hold their transactions open."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, Self

import psycopg

from enode_django.testing.event_store_read_contract import refusal, stream
from tests.integration.store_sessions import Call, bare_session, insert


class Writers:
    """Sessions at the same time, each with open transactions one after the other; some are rolled back.

    They write from the beginning of the ``with`` block to its end, however long the readers in it take to see enough:
    a fixed number of transactions may be over before a slow reader has looked a few times. The end waits for them, and
    raises what one of them raised.
    """

    def __init__(self, seed: int, writers: int) -> None:
        self._writes = [partial(self._write, random.Random(seed * 100 + number), number) for number in range(writers)]
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._is_ended = threading.Event()
        self.committed: Counter[str] = Counter()
        self.rolled_back = 0

    def __enter__(self) -> Self:
        self._calls = [Call(write) for write in self._writes]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        for call in self._calls:
            call.result()

    @property
    def committed_rows(self) -> int:
        """The number of rows that are known to be committed by now; at most one transaction of each writer is not."""
        with self._lock:
            return self.committed.total()

    def _write(self, chance: random.Random, number: int) -> None:
        with bare_session() as session:
            for turn in count():
                if self._is_ended.is_set():
                    return
                root_ids = [f"{number}-{turn}-{row}" for row in range(chance.randint(1, 4))]
                for root_id in root_ids:
                    insert(session, refusal(root_id, root_id) if chance.random() < 0.2 else stream(root_id, 1, root_id))
                    session.execute("SELECT pg_sleep(%s)", [chance.random() * 0.004])
                self._end(session, root_ids, commit=chance.random() < 0.7)

    def _end(self, session: psycopg.Connection[Any], root_ids: Sequence[str], *, commit: bool) -> None:
        if commit:
            session.commit()
        else:
            session.rollback()
        with self._lock:
            self.rolled_back += not commit
            self.committed.update(root_ids if commit else [])
