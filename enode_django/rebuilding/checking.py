"""Checks of the built tables: another replay must give the same rows, and they must be like those in use.

An aggregate at different versions in the two generations, because events keep coming, is replayed again up to its
version in use, and compared there. An aggregate that changes too quickly for that is compared when the swap has locked
writers out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from enode_django.concurrency.backoff import once
from enode_django.concurrency.stopping import pause
from enode_django.exceptions import RebuildError
from enode_django.models import Rebuild
from enode_django.rebuilding.catching_up import MOST, CatchingUp, TooMuchLeft
from enode_django.rebuilding.clearing import clear
from enode_django.rebuilding.comparing import EXAMPLES, Comparison, Generation, Lag, apart, compare, lagging, one_moment
from enode_django.rebuilding.failed import failed_in
from enode_django.rebuilding.meanings import is_attributed
from enode_django.rebuilding.replaying import Todo, replayer
from enode_django.rebuilding.retrying import retry_parked
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target

LOOK_AGAIN = 0.2
LOOKS = 25
"""Attempts to compare tables whose rows do not name their aggregates. One succeeds only at a moment when all aggregates
are at the same version in both generations."""
ROUNDS = 3
"""Rounds after which only aggregates that change all the time are left."""

Bring = Callable[[Shadow, Sequence[Todo]], object]


class UsedIsBehind(RebuildError):
    """The tables in use lack events that the built ones have, so they cannot be compared as a whole."""


class Check:
    """The comparison of the built tables with those in use."""

    def __init__(self, target: Target, record: Rebuild, catching_up: CatchingUp) -> None:
        self._found = Comparison(0, 0, 0, ())
        self._target = target
        self._record = record
        self._catching_up = catching_up
        self._left: Sequence[str] = ()
        self._made: Shadow | None = None
        self._attributed = [model for model in target.written if is_attributed(target, model)]
        self._others = [model for model in target.written if model not in self._attributed]

    @property
    def comparison(self) -> Comparison:
        """The result so far."""
        return self._found._replace(uncompared=self._left)

    @property
    def _built(self) -> Generation:
        return Generation.of(self._catching_up.shadow)

    def _used(self) -> Generation:
        return Generation("", self._target.generation())

    # -- while events keep coming ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Compare all aggregates, and those at different versions again. Blocks."""
        self.look()
        self.go_on()

    def look(self) -> None:
        """Compare the aggregates at the same version in both generations. Blocks."""
        lags = self._compare_all()
        behind = self._behind() if lags else []
        gone = {lag.aggregate_root_id for lag in behind}
        if self._attributed:  # otherwise there is nothing that could be compared aggregate by aggregate
            self._left = [lag.aggregate_root_id for lag in lags if lag.aggregate_root_id not in gone]
        self._found = self._found._replace(behind=behind, failed=failed_in(self._catching_up.shadow))

    def go_on(self) -> None:
        """Replay and compare the remaining aggregates, in up to `ROUNDS` rounds. Blocks."""
        for _ in range(ROUNDS):
            if self._left:
                self._replay_left(self._catching_up.engine.catch_up)

    def _compare_all(self) -> Sequence[Lag]:
        """Compare all tables. Return the aggregates in use that are at another version in the built tables."""
        stuck = {one.aggregate_root_id for one in failed_in(self._catching_up.shadow)}
        for _ in range(LOOKS):
            built, used = self._built, self._used()
            with one_moment(self._target.alias):
                self._found = compare(self._target, built, used)
                lags = apart(self._target, built, used) if self._found.apart else []
            if not self._found.undecided or any(_cannot_reach(lag, stuck) for lag in lags):
                break
            pause(LOOK_AGAIN)
        return lags

    def _behind(self) -> list[Lag]:
        """Return the aggregates whose versions in use the built tables cannot reach: parked ones, and unknown ones."""
        target, built, used = self._target, self._built, self._used()
        ahead = {lag.aggregate_root_id: lag for lag in lagging(target, built, used)}
        if not ahead:
            return []
        self._catching_up.run()
        if still := _short_of(ahead, lagging(target, built, used, list(ahead))):
            self._catching_up.reach(
                [Todo(lag.aggregate_root_id, "", ahead[lag.aggregate_root_id].other) for lag in still]
            )
            still = _short_of(ahead, lagging(target, built, used, [lag.aggregate_root_id for lag in still]))
        return still

    def _replay_left(self, bring: Bring) -> None:
        """Replay the remaining aggregates in separate tables up to their versions in use, and compare them there. Those
        that have changed meanwhile remain."""
        if self._made is None:
            self._made = self._target.make_scratch(self._record)
        fresh, used = Generation.of(self._made), self._used()
        lags = apart(self._target, fresh, used, self._left)
        bring(self._made, [Todo(lag.aggregate_root_id, "", lag.other) for lag in lags])
        until = {lag.aggregate_root_id: lag.other for lag in lags}
        retry_parked(self._target, self._catching_up.store, self._made, until)
        self._compare_left(fresh, used)

    def _compare_left(self, one: Generation, used: Generation) -> None:
        with one_moment(self._target.alias):
            found = compare(self._target, one, used, self._left, models=self._attributed)
            lags = apart(self._target, one, used, self._left)
        self._left = [lag.aggregate_root_id for lag in lags]
        self._add(found)

    def _add(self, found: Comparison) -> None:
        known = self._found
        self._found = known._replace(
            compared=known.compared + found.compared,
            rows=known.rows + found.rows,
            examples=[*known.examples, *found.examples][:EXAMPLES],
        )

    # -- when writers are shut out --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Compare the rest in the transaction of the swap, in which the tables in use do not change.

        Can be repeated after a rollback: rows compared before it were compared at a version that both generations had,
        as those that `look` compares. Raises `TooMuchLeft` and `UsedIsBehind`.
        """
        if len(self._left) > MOST:
            raise TooMuchLeft("more is still to be compared than writers should wait for")
        if self._left:
            self._reach_used(self._left)
            self._compare_left(self._built, self._used())
        if self._left:
            self._replay_left(_bring_here)
        if self._found.undecided:
            self._finish_others()

    def _reach_used(self, ids: Sequence[str] | None) -> None:
        lags = lagging(self._target, self._built, self._used(), ids)
        if len(lags) > MOST:
            raise TooMuchLeft("more came meanwhile than writers should wait for")
        _bring_here(self._catching_up.shadow, [Todo(lag.aggregate_root_id, "", lag.other) for lag in lags])

    def _finish_others(self) -> None:
        """Compare the tables that are not attributed as a whole."""
        self._reach_used(None)
        found = compare(self._target, self._built, self._used(), models=self._others)
        if found.undecided:
            raise UsedIsBehind("the tables in use lack events that were handled in the built ones")
        self._add(found)
        self._found = self._found._replace(undecided=())

    def close(self) -> None:
        """Drop the tables made for the comparison. Safe to call twice."""
        if self._made is not None:
            clear(self._made)
            self._made = None


def _bring_here(shadow: Shadow, todo: Sequence[Todo]) -> None:
    """Catch aggregates up in this thread's transaction."""
    if todo:
        with replayer(shadow, once) as replaying:
            replaying.catch_up(todo)


def _cannot_reach(lag: Lag, stuck: Collection[str]) -> bool:
    """Return True if an aggregate that failed would have to come further: to wait for that is in vain."""
    return lag.one < lag.other and lag.aggregate_root_id in stuck


def _short_of(ahead: Mapping[str, Lag], lags: Sequence[Lag]) -> list[Lag]:
    """Return the aggregates that have not reached their version in use at the time of ``ahead``."""
    return [lag for lag in lags if lag.one < ahead[lag.aggregate_root_id].other]
