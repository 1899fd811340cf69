from __future__ import annotations

from decimal import Decimal

from enode_django import ModelProjection, handles
from tests.acceptance.meters.first.domain import Counted
from tests.acceptance.meters.models import Reading


class Readings(ModelProjection[Reading]):
    name = "meters.Readings"

    @handles
    def counted(self, row: Reading, event: Counted) -> None:
        row.watt_hours += int(Decimal(event.kilowatt_hours) * 1000)
        row.changes += 1
