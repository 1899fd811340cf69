"""Detection of values that were chosen to have the same hash. Pure.

A set or dictionary compares each such value with all before it. The hashes of text, bytes and dates are unpredictable;
those of whole numbers, decimals, UUIDs, and of values that contain these, are remainders of a division.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

MOST_ALIKE = 100
"""The most different values that may have the same hash in a collection. Values do not collide by chance; of the powers
of two up to 2 ** 1000, 17 have the same hash."""

_MODULUS = sys.hash_info.modulus


def collide(values: Collection[Any]) -> bool:
    """Return True if more than `MOST_ALIKE` different values have one hash. Takes linear time. Raises `TypeError` for
    a value that cannot be hashed."""
    if len(values) <= MOST_ALIKE or ({*map(type, values)} == {int} and max(map(abs, values)) < _MODULUS):
        return False
    hashes = [*map(hash, values)]
    if len(hashes) - len({*hashes}) < MOST_ALIKE:
        return False
    often, count = Counter(hashes).most_common(1)[0]
    if count <= MOST_ALIKE:
        return False
    alike = (value for value, hashed in zip(values, hashes, strict=True) if hashed == often)
    return len({repr(value) for value in alike}) > MOST_ALIKE
