"""Translation of Spark's filters to conditions of a scan. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from enode_django.eventstore.scanning import Scan

_TYPE, _ID, _MADE = ("aggregate_root_type",), ("aggregate_root_id",), ("created_at",)
_MOMENT = timedelta(microseconds=1)
"""The unit of timestamps on both sides."""


def narrowed(scan: Scan, condition: Filter) -> Scan | None:
    """Return the scan of those rows of ``scan`` that fulfil the condition; None if a scan cannot express it."""
    match condition:
        case EqualTo(attribute, str() as value):
            return _among(scan, attribute, [value])
        case In(attribute, values) if all(isinstance(value, str | None) for value in values):
            return _among(scan, attribute, [value for value in values if value is not None])
        case EqualTo(attribute, datetime() as time) if attribute == _MADE and _is_exact(time):
            return made_between(scan, time, time + _MOMENT)
        case GreaterThanOrEqual(attribute, datetime() as time) if attribute == _MADE and _is_exact(time):
            return made_between(scan, time, None)
        case GreaterThan(attribute, datetime() as time) if attribute == _MADE and _is_exact(time):
            return made_between(scan, time + _MOMENT, None)
        case LessThan(attribute, datetime() as time) if attribute == _MADE and _is_exact(time):
            return made_between(scan, None, time)
        case LessThanOrEqual(attribute, datetime() as time) if attribute == _MADE and _is_exact(time):
            return made_between(scan, None, time + _MOMENT)
    return None


def is_about_types(condition: Filter) -> bool:
    return isinstance(condition, EqualTo | In) and condition.attribute == _TYPE


def leaves_out_refusals(condition: Filter) -> bool:
    return condition == IsNotNull(("version",))


def nothing_of(scan: Scan) -> Scan:
    """Return a scan without rows: no id is below the empty one."""
    return scan._replace(high="")


def is_nothing(scan: Scan) -> bool:
    return scan.high == ""


def _is_exact(time: datetime) -> bool:
    """Return True if the time is aware and is not the last microsecond that a datetime can hold."""
    return time.tzinfo is not None and time.replace(tzinfo=None) < datetime.max


def _among(scan: Scan, attribute: tuple[str, ...], values: Sequence[str]) -> Scan | None:
    if attribute == _TYPE:
        both = _both(scan.types, values)
        return scan._replace(types=both) if both else nothing_of(scan)
    if attribute == _ID:
        both = _both(scan.ids, values)
        return scan._replace(ids=both) if both else nothing_of(scan)
    return None


def _both(some: Sequence[str], others: Sequence[str]) -> Sequence[str]:
    """Return the sorted values in both; an empty ``some`` stands for all."""
    return sorted({*some} & {*others} if some else {*others})


def made_between(scan: Scan, begin: datetime | None, end: datetime | None) -> Scan:
    """Return the scan of those rows that were created at times t with begin <= t < end (None: no bound)."""
    begins = [time for time in (scan.created_from, begin) if time is not None]
    ends = [time for time in (scan.created_before, end) if time is not None]
    return scan._replace(created_from=max(begins, default=None), created_before=min(ends, default=None))
