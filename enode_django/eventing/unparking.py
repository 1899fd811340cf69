"""Settle a parked aggregate: try again, or skip the event it is parked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from django.db import transaction

from enode_django.eventing import checkpoints, parking
from enode_django.eventing.event_subscription import PORTION, EventSubscription
from enode_django.eventing.parking import Parked
from enode_django.eventing.pending import Failure, PendingAggregate
from enode_django.exceptions import NotParked


def retry_parked(subscription: EventSubscription, aggregate_root_id: str) -> Parked | None:
    """Try again, and catch up from the store. Blocks. Return the row that the aggregate is parked at now, or None.

    Raises `NotParked`. Workers may go on: they pass over the aggregate while it is parked, and it stays parked until it
    has handled the events that they have passed over.
    """
    _check_parked(subscription, aggregate_root_id)
    return retry_for_a_while(subscription, aggregate_root_id)


def skip_parked(
    subscription: EventSubscription, aggregate_root_id: str, *, command_id: str | None = None
) -> Parked | None:
    """Mark the event or refusal that the aggregate is parked at as handled, and go on as `retry_parked` does. Raises
    `NotParked`; also if ``command_id`` is given, and the aggregate is parked at what another command has caused; and if
    events before that one are not handled."""
    processor, id, name = subscription.runner.processor, aggregate_root_id, subscription.subscriber.name
    with transaction.atomic(using=processor.alias):
        processor.claimed([id])  # from here on, nobody else unparks it or replaces its rows
        skipped = _check_parked(subscription, id)
        if command_id not in (None, skipped.command_id):
            raise NotParked(
                f"{name} has parked {id!r} at {_place(skipped)}, not at what command {command_id!r} has caused: "
                "nothing is skipped; settle what it is parked at first"
            )
        if (skipped.version or 0) > processor.positions([id]).get(id, 0) + 1:
            raise NotParked(
                f"{name} has not handled what comes before version {skipped.version} of {id!r}, since its tables were "
                "swapped or taken back: nothing is skipped; retry it"
            )
        # An event is noted as a handled refusal, too: otherwise the resender would take its commands for lost.
        checkpoints.save_refusals(processor.alias, processor.key, [(id, skipped.command_id)])
        if skipped.version is not None:
            processor.skip_to(id, skipped.version)
    return retry_for_a_while(subscription, id)


def _place(parked: Parked) -> str:
    return f"the refusal of {parked.command_id!r}" if parked.version is None else f"version {parked.version}"


def _check_parked(subscription: EventSubscription, aggregate_root_id: str) -> Parked:
    """Return the row that the aggregate is parked at. Raises `NotParked`."""
    for row in _rows(subscription, aggregate_root_id):
        return row
    raise NotParked(
        f"{subscription.subscriber.name} has not parked {aggregate_root_id!r}; see manage.py enode parked list"
    )


def _rows(subscription: EventSubscription, aggregate_root_id: str) -> list[Parked]:
    """Return the rows of a parked aggregate, the failed event first."""
    return parking.list_parked(subscription.runner.alias, subscription.runner.key, aggregate_root_id)


def retry_for_a_while(
    subscription: EventSubscription, aggregate_root_id: str, is_over: Callable[[], bool] = lambda: False
) -> Parked | None:
    """Try again as `retry_parked` does, but leave the rest for later when ``is_over`` returns True; it is called after
    each portion. Return the row that the aggregate is parked at now; None if it is not parked, or never was."""
    while rows := _rows(subscription, aggregate_root_id):
        if not _retry(subscription, rows, is_over):
            break
    return next(iter(_rows(subscription, aggregate_root_id)), None)


def _retry(subscription: EventSubscription, rows: Sequence[Parked], is_over: Callable[[], bool]) -> bool:
    """Handle every event that these rows or the store name. Return True if the aggregate can be unparked."""
    runner, id = subscription.runner, rows[0].aggregate_root_id
    head = _head(subscription, id)
    work = _work(subscription, rows, head)
    subscription.suspect_swept([work])
    portion = 1 if work.suspect else PORTION
    while True:
        progress = runner.run([work], portion, even_parked=True)[id]
        if progress.failure is None and progress.version >= work.until:
            runner.persisted(partial(_release, subscription, rows, head))
            return True
        if progress.failure is None:
            if is_over():
                runner.persisted(partial(parking.hurry, runner.alias, runner.key, id))
                return False
            portion = 1 if work.suspect else min(portion * 2, PORTION)
            continue
        if progress.skips_ahead:
            portion = 1  # so that the failing event stands alone
            continue
        work.failures = 1
        return not _park_again(subscription, work, progress.failure, rows)


def _release(subscription: EventSubscription, rows: Sequence[Parked], head: int) -> None:
    """Unpark the aggregate, unless the store has more than ``head`` now, or its tables were replaced by ones that have
    not come so far. Its checkpoint is locked first, so this stays true until the end."""
    processor, id = subscription.runner.processor, rows[0].aggregate_root_id
    with transaction.atomic(using=processor.alias):
        reached = processor.claimed([id]).get(id, head)
        parking.release(processor.alias, rows, lambda: reached < head or _head(subscription, id) > head)


def _park_again(
    subscription: EventSubscription, work: PendingAggregate, failed: Failure, rows: Sequence[Parked]
) -> bool:
    """Park the aggregate where it failed now, for longer if it failed there before. Return as `Runner.park` does."""
    since = min((row.first_failed_at for row in rows if row.command_id == failed.command_id), default=failed.failed_at)
    pause = subscription.policy.parked_pause(failed.error, (failed.failed_at - since).total_seconds())
    others = [row for row in rows if row.attempts and row.command_id != failed.command_id]
    return subscription.runner.park(work, failed, others, pause=pause)


def _head(subscription: EventSubscription, id: str) -> int:
    return subscription.runner.processor.store.heads([id]).get(id, 0)


def _work(subscription: EventSubscription, rows: Sequence[Parked], until: int) -> PendingAggregate:
    id = rows[0].aggregate_root_id
    refusals = subscription.runner.processor.store.find([(row.command_id, id) for row in rows if row.version is None])
    work = PendingAggregate(id, rows[0].aggregate_root_type, until)
    for refusal in refusals.values():
        work.add(refusal)
    return work
