from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue import assignment
from enode_django.equeue.assignment import divide, rotated

QUEUES = st.lists(st.integers(0, 40), unique=True, max_size=24)
WORKERS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@st.composite
def divisions(draw: st.DrawFn) -> dict[str, frozenset[int]]:
    """Draw any disjoint holding of queues, including workers and queues that are gone."""
    holding: dict[str, set[int]] = {}
    for queue in draw(QUEUES):
        holding.setdefault(draw(st.sampled_from("abcdefgh")), set()).add(queue)
    return {worker: frozenset(queues) for worker, queues in holding.items()}


def fewest_moves(queues: set[int], workers: list[str], current: dict[str, frozenset[int]]) -> int:
    """Return the minimum number of queues that have to move, computed independently of `divide`."""
    share, odd = divmod(len(queues), len(workers))
    held = sorted((len(current.get(worker, frozenset()) & queues) for worker in workers), reverse=True)
    kept = sum(min(count, share + (place < odd)) for place, count in enumerate(held))
    return sum(held) - kept


@given(QUEUES, WORKERS, divisions())
def test_division_is_complete_disjoint_and_even(
    queues: list[int], workers: list[str], current: dict[str, frozenset[int]]
) -> None:
    division = divide(queues, workers, current)
    assert set(division) == set(workers)
    if workers:
        assert sorted(queue for share in division.values() for queue in share) == sorted(queues)
        sizes = [len(share) for share in division.values()]
        assert max(sizes) - min(sizes) <= 1


@given(QUEUES, WORKERS.filter(bool), divisions())
def test_as_few_queues_move_as_possible(
    queues: list[int], workers: list[str], current: dict[str, frozenset[int]]
) -> None:
    division = divide(queues, workers, current)
    held = {worker: current.get(worker, frozenset()) & set(queues) for worker in workers}
    moved = sum(len(held[worker] - division[worker]) for worker in workers)
    assert moved == fewest_moves(set(queues), workers, current)


@given(QUEUES, WORKERS, divisions())
def test_dividing_again_changes_nothing(
    queues: list[int], workers: list[str], current: dict[str, frozenset[int]]
) -> None:
    division = divide(queues, workers, current)
    assert divide(queues, workers, division) == division


@given(st.data(), QUEUES, WORKERS, divisions())
def test_order_of_workers_does_not_matter(
    data: st.DataObject, queues: list[int], workers: list[str], current: dict[str, frozenset[int]]
) -> None:
    shuffled = divide(queues, data.draw(st.permutations(workers)), current)
    assert shuffled == divide(queues, workers, current)


@given(QUEUES, WORKERS.filter(bool), divisions())
def test_a_worker_keeps_the_first_of_its_queues(
    queues: list[int], workers: list[str], current: dict[str, frozenset[int]]
) -> None:
    for worker, share in divide(queues, workers, current).items():
        held = [queue for queue in queues if queue in current.get(worker, ())]
        assert share & set(held) == set(held[: len(share)])


@given(QUEUES, st.text())
def test_rotated_queues_ascend_from_one_of_them_on(queues: list[int], group: str) -> None:
    order = rotated(queues, group)
    start = order.index(min(order)) if order else 0
    assert order[start:] + order[:start] == sorted(queues)


@given(QUEUES, WORKERS.filter(bool))
def test_queue_claimed_twice_ends_with_one_worker(queues: list[int], workers: list[str]) -> None:
    division = divide(queues, workers, dict.fromkeys(workers, frozenset(queues)))
    assert sorted(queue for share in division.values() for queue in share) == sorted(queues)


def test_worked_example_holds() -> None:
    assert doctest.testmod(assignment).failed == 0
