from __future__ import annotations

from decimal import Decimal

from enode_django import Command


class Measure(Command):
    """Adds ``amount``, in kilowatt hours, to the total of the meter. The first measurement creates the meter.

    The result is the new total in watt hours.
    """

    type_name = "meters.Measure"

    amount: Decimal
