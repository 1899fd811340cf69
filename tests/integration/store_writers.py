"""Sessions that write to the event store at the same time, and hold their transactions open."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg

from enode_django.testing.event_store_read_contract import refusal, stream
from tests.integration.store_sessions import Call, bare_session, insert


class Writers:
    """Sessions at the same time, each with open transactions one after the other; some are rolled back."""

    def __init__(self, seed: int, writers: int, transactions: int) -> None:
        self._transactions = transactions
        self._lock = threading.Lock()
        self.committed: Counter[str] = Counter()
        self.rolled_back = 0
        self._unfinished = writers
        self._calls = [Call(partial(self._write, seed, number)) for number in range(writers)]

    @property
    def are_busy(self) -> bool:
        return self._unfinished > 0

    def join(self) -> None:
        for call in self._calls:
            call.result()

    def _write(self, seed: int, number: int) -> None:
        try:
            self._write_all(random.Random(seed * 100 + number), number)
        finally:
            with self._lock:
                self._unfinished -= 1

    def _write_all(self, chance: random.Random, number: int) -> None:
        with bare_session() as session:
            for turn in range(self._transactions):
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
