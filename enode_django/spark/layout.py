"""Ranges of buckets, for the directories of the archive and the tasks that read it. Pure functions.

The number of ranges is a power of two up to 1,024, and all have equally many buckets. So two ranges are either disjoint
or one contains the other.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from typing import NamedTuple

from enode_django.eventstore.buckets import BUCKETS


class BucketRange(NamedTuple):
    """The buckets from ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def label(self) -> str:
        """
        >>> BucketRange(128, 255).label
        '0128-0255'
        """
        return f"{self.first:04}-{self.last:04}"

    def meets(self, other: BucketRange) -> bool:
        return self.first <= other.last and other.first <= self.last


def bucket_ranges(count: int) -> list[BucketRange]:
    """Divide all buckets into ``count`` ranges, a power of two up to 1,024.

    >>> [one.label for one in bucket_ranges(2)]
    ['0000-0511', '0512-1023']
    """
    width = BUCKETS // count
    return [BucketRange(first, first + width - 1) for first in range(0, BUCKETS, width)]


def range_of(label: str) -> BucketRange:
    """Return the range of a label. Raises `ValueError` for any other text.

    >>> range_of("0128-0255")
    BucketRange(first=128, last=255)
    """
    first, last = map(int, label.split("-"))
    return BucketRange(first, last)


def labels_meeting(labels: Collection[str], wanted: BucketRange) -> list[str]:
    """Return the sorted labels of the ranges that share buckets with ``wanted``.

    >>> labels_meeting({"0000-0511", "0512-1023", "0000-1023"}, BucketRange(0, 127))
    ['0000-0511', '0000-1023']
    """
    return sorted(label for label in labels if range_of(label).meets(wanted))


def count_ranges(size: int, *, most: int, least: int, wanted: int) -> int:
    """Return the number of ranges for ``size`` bytes, rounded up to a power of two, at most 1,024. A range has at most
    ``most`` bytes; there are up to ``wanted`` ranges if each has at least ``least`` bytes.

    >>> count_ranges(1_000, most=100, least=10, wanted=4)
    16
    >>> count_ranges(50, most=100, least=10, wanted=4)
    4
    >>> count_ranges(25, most=100, least=10, wanted=4)
    2
    """
    count = max(ceil(size / most), min(wanted, size // least), 1)
    return min(1 << (count - 1).bit_length(), BUCKETS)
