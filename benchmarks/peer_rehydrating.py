"""``python -m benchmarks.peer_rehydrating ACCOUNTS EVENTS ENVIRONMENT``: for each line of its input it prints the
seconds of one load of all accounts.

It has no cache, like ours here, so nothing is copied. ``plain`` uses Python's default thresholds of the cycle
collector, like its users; ``tuned`` sets those of our workers from then on.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from benchmarks.peer_process import AMOUNT, Account, Bank


def main(accounts: str, events: str, environment: str) -> None:
    settings = {key: value for key, value in json.loads(environment).items() if "AGGREGATE_CACHE" not in key}
    bank = Bank(env=settings)
    ids = []
    for number in range(int(accounts)):
        account = Account(f"owner {number}")
        ids.append(account.id)
        for version in range(2, int(events) + 1):
            account.deposit(AMOUNT)
            if version % 1_000 == 0:
                bank.save(account)
        bank.save(account)
    bank.repository.get(ids[0])

    def load() -> float:
        started = time.perf_counter()
        loaded: list[Account] = [bank.repository.get(id) for id in ids]
        seconds = time.perf_counter() - started
        assert {account.version for account in loaded} == {int(events)}
        return seconds

    for kind in map(str.strip, sys.stdin):
        if kind == "tuned":
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 10)
        print(load(), flush=True)
    bank.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
