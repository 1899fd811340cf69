"""The commands that the process manager of transfers must send, and their ids."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

PROCESS_MANAGER = "bank.transfers"
_NAMESPACE = uuid.UUID("6f0c3a52-5f0b-5d0c-9a3e-0e8f3d6b7c11")

Target: TypeAlias = tuple[str, str]
"""Type of a command and id of its aggregate."""


class FollowUp(NamedTuple):
    """A command that follows from the event or refusal ``cause``, for the transfer ``transfer``."""

    command_id: str
    aggregate_root_id: str
    type_name: str
    cause: str
    transfer: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.command_id, self.aggregate_root_id)


def event_id(aggregate_root_id: str, version: int, index: int) -> str:
    return f"{aggregate_root_id}/{version}/{index}"


def refusal_id(aggregate_root_id: str, command_id: str) -> str:
    return f"{aggregate_root_id}/refused/{command_id}"


def follow_ups(cause: str, aggregate_root_id: str, type_name: str, fields: Mapping[str, Any]) -> Iterator[FollowUp]:
    """Yield the commands that must follow from an event or refusal of an aggregate; for most there are none."""
    targets = _TARGETS.get(type_name)
    if targets is None:
        return
    seen: Counter[Target] = Counter()
    for command_type, target in targets(aggregate_root_id, fields):
        seen[command_type, target] += 1
        id = derived_id(cause, command_type, target, seen[command_type, target])
        yield FollowUp(id, target, command_type, cause, fields.get("transfer") or aggregate_root_id)


def derived_id(cause: str, command_type: str, aggregate_root_id: str, number: int) -> str:
    """Return a UUID of version 5 over the parts, each after its length. ``number`` counts equal commands from 1."""
    parts = (cause, PROCESS_MANAGER, command_type, aggregate_root_id, str(number))
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


def _both(source: str, target: str) -> Callable[[str, Mapping[str, Any]], list[Target]]:
    return lambda id, fields: [(source, fields["source"]), (target, fields["target"])]


def _transfer(command_type: str) -> Callable[[str, Mapping[str, Any]], list[Target]]:
    return lambda id, fields: [(command_type, fields["transfer"])]


def _cancelled(id: str, fields: Mapping[str, Any]) -> list[Target]:
    """Return the cancellation of the transfer. Refused deposits and withdrawals name no transfer."""
    return [] if fields.get("transfer") is None else [("bank.CancelTransfer", fields["transfer"])]


_TARGETS: Mapping[str, Callable[[str, Mapping[str, Any]], list[Target]]] = {
    "bank.TransferStarted": _both("bank.ReserveWithdrawal", "bank.ReserveDeposit"),
    "bank.WithdrawalReserved": _transfer("bank.NoteReserved"),
    "bank.DepositReserved": _transfer("bank.NoteReserved"),
    "bank.TransferConfirmed": _both("bank.ConfirmWithdrawal", "bank.ConfirmDeposit"),
    "bank.WithdrawalConfirmed": _transfer("bank.NoteMoved"),
    "bank.DepositConfirmed": _transfer("bank.NoteMoved"),
    "bank.TransferCancelled": _both("bank.CancelReservation", "bank.CancelReservation"),
    "bank.InsufficientFunds": _cancelled,
    "bank.AccountIsClosed": _cancelled,
    "bank.UnknownAccount": _cancelled,
    "bank.InvalidAmount": _cancelled,
}

TYPES = frozenset(
    f"bank.{name}"
    for name in (
        *("ReserveWithdrawal", "ReserveDeposit", "ConfirmWithdrawal", "ConfirmDeposit", "CancelReservation"),
        *("NoteReserved", "NoteMoved", "CancelTransfer"),
    )
)
