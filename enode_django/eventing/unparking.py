"""What is done about a parked aggregate: try again, or skip what it is parked at."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.eventing import checkpoints, parking
from enode_django.eventing.follower import PORTION, Follower
from enode_django.eventing.parking import Parked
from enode_django.eventing.running import Runner
from enode_django.eventing.work import Failure, Work
from enode_django.exceptions import NotParked


def retry_parked(follower: Follower, aggregate_root_id: str) -> Parked | None:
    """Try again, and catch up from the store; returns what the aggregate is parked at now, or None. Blocks meanwhile.

    Raises `NotParked`. Workers may go on: they pass over the aggregate as long as it is parked.
    """
    rows = _parked_rows(follower, aggregate_root_id)
    type_name = rows[0].aggregate_root_type
    while rows:
        if not _retry(follower, rows):
            break
        rows = _rows(follower, aggregate_root_id)  # refusals that came to wait meanwhile
    return _catch_up(follower, aggregate_root_id, type_name)


def skip_parked(follower: Follower, aggregate_root_id: str) -> Parked | None:
    """Take what the aggregate is parked at as handled, and go on as `retry_parked`. Raises `NotParked`."""
    runner, skipped = follower.runner, _parked_rows(follower, aggregate_root_id)[0]
    if skipped.version is not None:
        runner.applier.skip_to(aggregate_root_id, skipped.version)
    else:
        checkpoints.save_refusals(runner.alias, runner.subscriber.name, [(aggregate_root_id, skipped.command_id)])
    # Parked until all that waits is handled: nobody else would come back to what fails on the way.
    return retry_parked(follower, aggregate_root_id)


def _parked_rows(follower: Follower, aggregate_root_id: str) -> list[Parked]:
    rows = _rows(follower, aggregate_root_id)
    if not rows:
        raise NotParked(f"{follower.subscriber.name} has not parked {aggregate_root_id!r}; see manage.py parked list")
    return rows


def _rows(follower: Follower, aggregate_root_id: str) -> list[Parked]:
    return parking.list_parked(follower.runner.alias, follower.subscriber.name, aggregate_root_id)


def _retry(follower: Follower, rows: Sequence[Parked]) -> bool:
    """Whether all of it was handled, and the aggregate is free again."""
    runner = follower.runner
    work = _work(follower, rows[0].aggregate_root_id, rows[0].aggregate_root_type, rows)
    failure = _handle(runner, work, even_parked=True)
    if failure is None:
        parking.remove(runner.alias, rows)
        return True
    _park(runner, work, failure)
    if failure.command_id != rows[0].command_id:
        parking.remove(runner.alias, [row for row in rows if row.attempts])
    return False


def _catch_up(follower: Follower, aggregate_root_id: str, type_name: str) -> Parked | None:
    """Workers may have passed over versions between the last look at the store and the end of the parking."""
    work = _work(follower, aggregate_root_id, type_name, ())
    failure = _handle(follower.runner, work, even_parked=False)
    if failure is not None:
        _park(follower.runner, work, failure)
    return next(iter(_rows(follower, aggregate_root_id)), None)


def _handle(runner: Runner, work: Work, *, even_parked: bool) -> Failure | None:
    """Returns when all is handled, or stops at what fails."""
    portion = PORTION
    while True:
        progress = runner.run([work], portion, even_parked=even_parked)[work.aggregate_root_id]
        if progress.failure is None:
            if progress.parked is not None or progress.version >= work.until:
                return None
        elif portion > 1:
            portion = 1  # so that what fails stands alone
        else:
            return progress.failure


def _park(runner: Runner, work: Work, failure: Failure) -> None:
    """Nobody but this call would try it again."""
    work.failures = 1
    runner.park(work, failure)


def _work(follower: Follower, id: str, type_name: str, rows: Sequence[Parked]) -> Work:
    store = follower.runner.applier.store
    refusals = store.find([(row.command_id, id) for row in rows if row.version is None])
    work = Work(id, type_name, store.heads([id]).get(id, 0))
    for refusal in refusals.values():
        work.add(refusal)
    return work
