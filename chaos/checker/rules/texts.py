from __future__ import annotations

from decimal import Decimal, InvalidOperation


def same_text(left: str | None, right: str | None) -> bool:
    """Compare texts of values: numbers by their value, other texts without surrounding blanks.

    >>> same_text("5", "5.00"), same_text(" a", "a"), same_text(None, "None"), same_text(None, "0")
    (True, True, True, False)
    """
    if left is None or right is None:
        return left in (None, "None", "") and right in (None, "None", "")
    if left.strip() == right.strip():
        return True
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False
