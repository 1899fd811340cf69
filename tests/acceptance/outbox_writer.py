"""``python -m tests.acceptance.outbox_writer ACCOUNT``: deposits 1, 2, 3 …, each in a transaction of its own, and
prints what has committed, until it is killed."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from itertools import count

import django
from django.db import transaction

PAUSE = 0.003


def main(account: str) -> None:
    from enode_django import send_command
    from sample_project.bank.domain import Deposit, OpenAccount

    with transaction.atomic():
        send_command(OpenAccount(account, owner="Ada"), outbox=True)
    for number in count(1):
        with transaction.atomic():
            send_command(Deposit(account, amount=Decimal(number)), outbox=True)
        print(number, flush=True)
        time.sleep(PAUSE)  # it writes little while nobody relays


if __name__ == "__main__":
    django.setup()
    main(sys.argv[1])
