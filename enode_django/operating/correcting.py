"""Follow up a correction: retry the parked aggregate, and name the subscribers that have handled the original."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.parking import Parked, list_parked
from enode_django.eventing.pending import follows_events
from enode_django.eventing.process_managers import has_state
from enode_django.eventing.registry import subscriber_databases, subscribers
from enode_django.eventing.subscribers import Subscriber, key_of
from enode_django.eventing.unparking import retry_parked
from enode_django.exceptions import CorrectionRefused, EnodeError, NotParked
from enode_django.history import reached
from enode_django.runtime import make_store, subscription_of

HANDLED = "%s has handled the version before it was corrected, and keeps what it has made of that: %s"
REBUILD, DECIDE = "manage.py rebuildprojection %s --accept-differences", "that cannot be taken back"
WAITS = f"{DECIDE}; while the event waits for its process, it is read as corrected"


class Retried(NamedTuple):
    """The result of a retry. ``parked`` is the event that the aggregate is parked at now, None if the subscriber goes
    on. If ``error`` is set, the retry failed, and ``parked`` is not known."""

    subscriber: str
    parked: Parked | None = None
    error: str = ""


def parked_rows(subscriber: str = "") -> Sequence[Parked]:
    """Return the parked events of a subscriber, or of all, including those that this code no longer has. Raises
    `UnknownSubscriber`."""
    if subscriber:
        one = subscribers.get(subscriber)
        return list_parked(one.database, key_of(one))
    return [row for alias in subscriber_databases() for row in list_parked(alias)]


def parked_version(rows: Sequence[Parked], aggregate_root_id: str) -> int:
    """Return the version that the aggregate is parked at. Raises `CorrectionRefused` if it is not parked, at a refusal,
    or at several versions."""
    failed = [row for row in rows if row.aggregate_root_id == aggregate_root_id and row.attempts]
    versions = {row.version for row in failed if row.version is not None}
    if len(versions) == 1:
        return versions.pop()
    if versions:
        places = ", ".join(f"{subscribers.name_of(row.subscriber)} at version {row.version}" for row in failed)
        raise CorrectionRefused(f"{aggregate_root_id!r} is parked by {places}; say which version, or which subscriber")
    if failed:
        raise CorrectionRefused(
            f"{aggregate_root_id!r} is parked at the refusal of {failed[0].command_id!r}: only events are corrected; "
            "retry or skip it"
        )
    raise CorrectionRefused(f"{aggregate_root_id!r} is not parked: say which version is to be corrected")


def retry_all(aggregate_root_id: str) -> Iterator[Retried]:
    """Retry the aggregate for every subscriber that has parked it, in this thread; yield each result. Blocks."""
    keys = dict.fromkeys(row.subscriber for row in parked_rows() if row.aggregate_root_id == aggregate_root_id)
    for key in keys:
        name = subscribers.name_of(key)
        try:
            with subscription_of(key) as subscription:
                yield Retried(name, retry_parked(subscription, aggregate_root_id))
        except NotParked:  # a worker was faster
            yield Retried(name)
        except EnodeError as error:
            yield Retried(name, error=str(error))


def handled_before(aggregate_root_id: str, version: int) -> Sequence[str]:
    """Return a text for each subscriber that has handled events of the version, and what to do. Call it before
    `retry_all`, which lets more of them handle it."""
    stored = make_store().load_ranges({aggregate_root_id: (version - 1, version)}).get(aggregate_root_id, ())
    found = []
    for one in reached(aggregate_root_id):
        if one.version is not None and one.version >= version:
            with suppress(EnodeError):
                subscriber = subscribers.get(one.subscriber)
                if any(follows_events(subscriber, record) for record in stored):
                    found.append(HANDLED % (one.subscriber, _to_do(subscriber)))
    return found


def _to_do(subscriber: Subscriber) -> str:
    if isinstance(subscriber, BaseProjection):
        return REBUILD % subscriber.name
    return WAITS if has_state(subscriber) else DECIDE
