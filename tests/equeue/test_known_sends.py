from __future__ import annotations

import pytest

from enode_django.equeue import known_sends
from enode_django.equeue.known_sends import FORGOTTEN_AFTER, SENDS_KEPT, KnownSends
from enode_django.equeue.transport import KNOWN_SENDS

ONE, TWO = bytes(15) + b"1", bytes(15) + b"2"


def test_sends_are_known_by_topic_producer_and_number() -> None:
    sends = KnownSends()
    sends.add("a", ONE, 1, {0: 5}, 0.0)
    assert sends.answer("a", ONE, 1) == {0: 5}
    assert [sends.answer(*other) for other in (("b", ONE, 1), ("a", TWO, 1), ("a", ONE, 2))] == [None] * 3


def test_only_the_newest_sends_of_a_producer_are_known() -> None:
    sends = KnownSends()
    for number in range(SENDS_KEPT + 1):
        sends.add("a", ONE, number, {0: number}, 0.0)
    assert sends.answer("a", ONE, 0) is None
    assert sends.answer("a", ONE, 1) == {0: 1}
    assert SENDS_KEPT >= KNOWN_SENDS


def test_silent_producers_are_forgotten() -> None:
    sends = KnownSends()
    sends.add("a", ONE, 1, {0: 1}, 0.0)
    sends.add("a", TWO, 1, {0: 2}, 10.0)
    sends.forget(FORGOTTEN_AFTER + 5.0)
    assert sends.answer("a", ONE, 1) is None
    assert sends.answer("a", TWO, 1) == {0: 2}


def test_producers_above_the_limit_are_forgotten_the_longest_silent_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_sends, "PRODUCERS_KEPT", 2)
    sends = KnownSends()
    sends.add("a", ONE, 1, {0: 1}, 0.0)
    sends.add("a", TWO, 1, {0: 2}, 0.0)
    sends.add("a", ONE, 2, {0: 3}, 0.0)
    sends.add("b", ONE, 3, {0: 0}, 0.0)
    assert [sends.answer(*each) for each in (("a", ONE, 2), ("a", TWO, 1), ("b", ONE, 3))] == [{0: 3}, None, {0: 0}]
    assert len(sends.plain()) == 2


def test_they_come_back_from_plain_data() -> None:
    sends = KnownSends()
    for number in range(3):
        sends.add("a", ONE, number, {0: number, 3: 1}, 7.0)
    again = KnownSends.restore(sends.plain())
    assert again.plain() == sends.plain()
    again.add("a", ONE, 3, {0: 3}, 8.0)
    assert again.answer("a", ONE, 1) == {0: 1, 3: 1}
