"""``python -m benchmarks.peer_process spread|hot COUNT ENVIRONMENT`` prints commands per second.

In its favour, every account is loaded into its cache first. Without deep copies, a lock per account keeps threads from
using one instance at once, and no command of the hot load is retried. With the defaults a thread works on a copy, and a
command that lost a race is retried on the next version.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from contextlib import nullcontext
from decimal import Decimal
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError

THREADS = 8
SPREAD_ACCOUNTS = 10_000
OPEN_AT_ONCE = 500
AMOUNT = Decimal("12.50")


class Account(Aggregate):
    @event("Opened")
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.balance = Decimal(0)

    def deposit(self, amount: Decimal) -> None:
        if amount <= 0:
            raise ValueError(amount)
        self._deposited(amount=amount, balance=self.balance + amount)

    @event("Deposited")
    def _deposited(self, amount: Decimal, balance: Decimal) -> None:
        self.balance = balance


class Bank(Application[UUID]):
    def deposit(self, account_id: UUID, amount: Decimal) -> Decimal:
        account: Account = self.repository.get(account_id)
        account.deposit(amount)
        self.save(account)
        return account.balance


def rate(bank: Bank, load: str, count: int) -> float:
    accounts = _opened(bank, SPREAD_ACCOUNTS if load == "spread" else 1)
    for id in accounts:
        bank.repository.get(id)
    copies = bank.repository.deepcopy_from_cache
    locks = {id: nullcontext() if copies else threading.Lock() for id in accounts}
    barrier = threading.Barrier(THREADS + 1)

    def work(number: int) -> None:
        choose = random.Random(number).choice
        chosen = [choose(accounts) for _ in range(count // THREADS)]
        barrier.wait()
        for id in chosen:
            _until_stored(bank, id, locks[id])
        barrier.wait()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    barrier.wait()
    return count // THREADS * THREADS / (time.perf_counter() - started)


def _until_stored(bank: Bank, id: UUID, lock: threading.Lock | nullcontext[None]) -> None:
    while True:
        try:
            with lock:
                bank.deposit(id, AMOUNT)
            return
        except IntegrityError:
            continue


def _opened(bank: Bank, count: int) -> list[UUID]:
    accounts = [Account(f"owner {n}") for n in range(count)]
    for start in range(0, count, OPEN_AT_ONCE):
        bank.save(*accounts[start : start + OPEN_AT_ONCE])
    return [account.id for account in accounts]


def main(load: str, count: str, environment: str) -> None:
    bank = Bank(env=json.loads(environment))
    _ = bank.repository
    print(rate(bank, load, int(count)))
    bank.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
