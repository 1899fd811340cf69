"""What is done about a parked aggregate: try again, or skip what it is parked at."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.eventing import checkpoints, parking
from enode_django.eventing.follower import PORTION, Follower
from enode_django.eventing.parking import Parked
from enode_django.eventing.work import Work
from enode_django.exceptions import NotParked


def retry_parked(follower: Follower, aggregate_root_id: str) -> Parked | None:
    """Try again, and catch up from the store; returns what the aggregate is parked at now, or None. Blocks meanwhile.

    Raises `NotParked`. Workers may go on: they pass over the aggregate as long as it is parked.
    """
    rows = _rows(follower, aggregate_root_id)
    if not rows:
        raise NotParked(f"{follower.subscriber.name} has not parked {aggregate_root_id!r}; see manage.py parked list")
    while rows:
        if not _retry(follower, rows):
            break
        rows = _rows(follower, aggregate_root_id)  # refusals that came to wait meanwhile
    return _catch_up(follower, aggregate_root_id)


def skip_parked(follower: Follower, aggregate_root_id: str) -> Parked | None:
    """Take what the aggregate is parked at as handled, and go on as `retry_parked`. Raises `NotParked`."""
    rows = _rows(follower, aggregate_root_id)
    if not rows:
        raise NotParked(f"{follower.subscriber.name} has not parked {aggregate_root_id!r}; see manage.py parked list")
    runner = follower.runner
    if rows[0].version is not None:
        runner.applier.skip_to(aggregate_root_id, rows[0].version)
    else:
        checkpoints.save_refusals(runner.alias, runner.subscriber.name, [(aggregate_root_id, rows[0].command_id)])
    if len(rows) == 1:
        parking.remove(follower.runner.alias, rows)
        return _catch_up(follower, aggregate_root_id)
    parking.remove(follower.runner.alias, rows[:1])
    return retry_parked(follower, aggregate_root_id)


def _rows(follower: Follower, aggregate_root_id: str) -> list[Parked]:
    return parking.list_parked(follower.runner.alias, follower.subscriber.name, aggregate_root_id)


def _retry(follower: Follower, rows: Sequence[Parked]) -> bool:
    """Whether all of it was handled, and the aggregate is free again."""
    runner = follower.runner
    work = _work(follower, rows[0].aggregate_root_id, rows)
    portion = PORTION
    while True:
        progress = runner.run([work], portion, even_parked=True)[work.aggregate_root_id]
        if progress.failure is None and progress.version >= work.until:
            parking.remove(runner.alias, rows)
            return True
        if progress.failure is None:
            continue
        if portion > 1:
            portion = 1  # so that what fails stands alone
            continue
        work.failures = 1
        runner.park(work, progress.failure)
        if progress.failure.command_id != rows[0].command_id:
            parking.remove(runner.alias, [row for row in rows if row.attempts])
        return False


def _catch_up(follower: Follower, aggregate_root_id: str) -> Parked | None:
    """Workers may have passed over versions between the last look at the store and the end of the parking."""
    follower.catch_up([_work(follower, aggregate_root_id, ())])
    return next(iter(_rows(follower, aggregate_root_id)), None)


def _work(follower: Follower, id: str, rows: Sequence[Parked]) -> Work:
    store = follower.runner.applier.store
    refusals = store.find([(row.command_id, id) for row in rows if row.version is None])
    work = Work(id, rows[0].aggregate_root_type if rows else "", store.heads([id]).get(id, 0))
    for refusal in refusals.values():
        work.add(refusal)
    return work
