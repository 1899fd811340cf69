from __future__ import annotations

from decimal import Decimal

from enode_django import Command


class Measure(Command):
    """``amount``, in kilowatt hours, has gone through the meter, which is made when it is measured first.

    The result is what has gone through it altogether, in watt hours.
    """

    type_name = "meters.Measure"

    amount: Decimal
