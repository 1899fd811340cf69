from __future__ import annotations

from decimal import Decimal
from typing import Any

from enode_django import AggregateRoot, DomainEvent, applies, upcasts


class Measured(DomainEvent):
    type_name = "meters.Measured"
    aliases = ("meters.Counted",)
    schema_version = 3

    watt_hours: int
    source: str


@upcasts(Measured, from_version=1)
def kilowatt_hours_are_a_number(fields: dict[str, Any]) -> dict[str, Any]:
    return {"kilowatt_hours": Decimal(fields["kilowatt_hours"]), "source": "unknown"}


@upcasts(Measured, from_version=2)
def watt_hours_are_whole(fields: dict[str, Any]) -> dict[str, Any]:
    return {"watt_hours": int(fields["kilowatt_hours"] * 1000), "source": fields["source"]}


class PowerMeter(AggregateRoot):
    type_name = "meters.PowerMeter"
    aliases = ("meters.Meter",)
    snapshot_every = 10

    watt_hours: int = 0
    sources: dict[str, int] = {}

    def measure(self, watt_hours: int) -> int:
        self.apply(Measured(watt_hours=watt_hours, source="main"))
        return self.watt_hours

    @applies
    def _measured(self, event: Measured) -> None:
        self.watt_hours += event.watt_hours
        self.sources[event.source] = self.sources.get(event.source, 0) + event.watt_hours
