"""Amounts of money, and their validation."""

from __future__ import annotations

from decimal import Decimal

from enode_django import DomainException

ZERO = Decimal(0)
CENT = Decimal("0.01")
LARGEST_AMOUNT = Decimal(10**12)


class InvalidAmount(DomainException):
    amount: Decimal
    transfer: str | None = None


def check_amount(amount: Decimal, transfer: str | None = None) -> None:
    """Raise `InvalidAmount` unless the amount is positive, in whole cents and not above `LARGEST_AMOUNT`."""
    if not ZERO < amount <= LARGEST_AMOUNT or amount % CENT:
        message = f"the amount must be positive, in whole cents, and at most {LARGEST_AMOUNT:,}"
        raise InvalidAmount(message, amount=amount, transfer=transfer)
