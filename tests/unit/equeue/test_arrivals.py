from __future__ import annotations

from enode_django.equeue.arrivals import Arrivals


def test_the_oldest_of_an_address_goes_when_too_many_of_it_wait() -> None:
    arrivals = Arrivals[int](2)
    assert [arrivals.add(number, "a") for number in (1, 2)] == [None, None]
    assert arrivals.add(3, "b") is None
    assert arrivals.add(4, "a") == 1
    assert arrivals.add(5, "a") == 2
    assert len(arrivals._waiting) == 3


def test_the_oldest_of_all_goes_but_not_the_one_that_has_just_come() -> None:
    arrivals = Arrivals[int](2)
    assert arrivals.add(1, "a") is None
    assert arrivals.take_oldest(1) is None
    assert arrivals.add(2, "b") is None
    assert arrivals.take_oldest(2) == 1
    assert len(arrivals._waiting) == 1


def test_who_has_said_what_it_wants_is_not_counted_any_more() -> None:
    arrivals = Arrivals[int](1)
    for number in range(10):
        assert arrivals.add(number, "a") is None
        arrivals.discard(number)
        arrivals.discard(number)
    assert not arrivals._waiting
