from __future__ import annotations

from decimal import Decimal

from enode_django import Command


class PayInterest(Command):
    type_name = "newer.PayInterest"

    amount: Decimal
