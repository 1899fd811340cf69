from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from enode_django.equeue.redis.waiting import _Waiting


class ClosedMeanwhile:
    """A connection of redis-py that another thread closes while it looks at its socket."""

    def __init__(self) -> None:
        self._sock: Any = object()

    def can_read(self, timeout: float) -> bool:
        self._sock = None
        select.poll().register(self._sock)
        return True

    def read_response(self, *, disable_decoding: bool) -> object:
        self._sock = None
        return self._sock.recv_into(bytearray(1))


def waiting_on(connection: ClosedMeanwhile) -> _Waiting:
    node: Any = None
    return _Waiting(node, connection, 0, connection._sock)


@pytest.mark.parametrize("ask", [_Waiting.has_answer, _Waiting.answer])
def test_connection_that_is_closed_while_it_is_asked_is_a_closed_one(ask: Callable[[_Waiting], object]) -> None:
    with pytest.raises(ConnectionError, match="was closed"):
        ask(waiting_on(ClosedMeanwhile()))
    assert waiting_on(ClosedMeanwhile()).has_answer_or_error()


def test_another_error_is_not_taken_for_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: ClosedMeanwhile, timeout: float) -> bool:
        raise TypeError("a defect")

    monkeypatch.setattr(ClosedMeanwhile, "can_read", fail)
    with pytest.raises(TypeError, match="a defect"):
        waiting_on(ClosedMeanwhile()).has_answer()
