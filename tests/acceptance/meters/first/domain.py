from __future__ import annotations

from decimal import Decimal

from enode_django import AggregateRoot, DomainEvent, applies


class Counted(DomainEvent):
    type_name = "meters.Counted"

    kilowatt_hours: str


class Meter(AggregateRoot):
    type_name = "meters.Meter"
    snapshot_every = 10

    kilowatt_hours: Decimal = Decimal(0)

    def measure(self, kilowatt_hours: Decimal) -> int:
        self.apply(Counted(kilowatt_hours=str(kilowatt_hours)))
        return int(self.kilowatt_hours * 1000)

    @applies
    def _counted(self, event: Counted) -> None:
        self.kilowatt_hours += Decimal(event.kilowatt_hours)
