from __future__ import annotations

from enode_django import ModelProjection, handles
from tests.acceptance.meters.models import Reading
from tests.acceptance.meters.third.domain import Measured


class Readings(ModelProjection[Reading]):
    name = "meters.Readings"

    @handles
    def measured(self, row: Reading, event: Measured) -> None:
        row.watt_hours += event.watt_hours
        row.changes += 1
