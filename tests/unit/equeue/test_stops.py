from __future__ import annotations

from enode_django.equeue.stops import AS_ONE, Stops


def test_signals_that_come_together_are_one_stop_and_a_later_one_is_another() -> None:
    times = [0.0, 0.0, AS_ONE / 2, AS_ONE, AS_ONE * 1.5, AS_ONE * 5]
    stops = Stops(clock=iter(times).__next__)
    counts = []
    for _ in times:
        stops.add()
        counts.append(stops.count)
    assert counts == [1, 1, 1, 2, 2, 3]
