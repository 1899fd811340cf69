from __future__ import annotations

import time
from decimal import Decimal

from enode_django import event_handler
from sample_project.bank.domain import Deposited

GROUP = "hanging.mails"
HANGS_AT = Decimal(13)
LIMIT = 1.0
"""Seconds: the shorter, the sooner an innocent event of a slow machine counts as hanging."""


@event_handler(name="hanging.mail", group=GROUP, start="beginning", time_limit=LIMIT)
def mail(event: Deposited) -> None:
    while event.amount == HANGS_AT:
        time.sleep(1)
