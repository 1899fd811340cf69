"""A transfer, replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from chaos.checker.decoding import Event

TYPE = "bank.MoneyTransfer"
SIDES = {"source", "target"}


@dataclass(slots=True)
class Transfer:
    """A transfer. ``status`` is started, confirmed, completed or cancelled; empty before the first event."""

    id: str
    version: int = 0
    source: str = ""
    target: str = ""
    amount: Decimal = Decimal(0)
    status: str = ""
    reserved: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "cancelled")

    def apply(self, version: int, at: int, event: Event) -> None:
        """Apply an event. Raises LookupError, TypeError or ValueError if it is not a transfer's."""
        self.version = version
        fields = event.fields
        match event.type_name:
            case "bank.TransferStarted":
                self.source, self.target, self.amount = fields["source"], fields["target"], fields["amount"]
                self._become("started", "", True)
            case "bank.ReservationNoted":
                self.reserved.add(fields["side"])
            case "bank.TransferConfirmed":
                self._become("confirmed", "started", self.reserved == SIDES)
            case "bank.MovementNoted":
                self.moved.add(fields["side"])
            case "bank.TransferCompleted":
                self._become("completed", "confirmed", self.moved == SIDES)
            case "bank.TransferCancelled":
                self._become("cancelled", "started", True)
            case other:
                raise LookupError(other)

    def _become(self, status: str, before: str, is_due: bool) -> None:
        if self.status != before or not is_due:
            self.problems.append(
                f"version {self.version} of transfer {self.id} makes it {status}: it was {self.status or 'not there'}, "
                f"reserved by {sorted(self.reserved)}, moved by {sorted(self.moved)}"
            )
        self.status = status
