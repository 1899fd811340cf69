"""The mailbox against two lists: urgent items, and others. Other threads post between the steps of `Mailbox.take`, too.

The mailbox asks for an item's weight when it takes it. An item that the weight's function posts arrives as from another
thread in the middle of the call, at the same place in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from enode_django.concurrency.mailbox import Mailbox
from tests.models.profiles import as_test

Item = tuple[str, int, int]
"""Its kind, its number among those of its kind, its weight."""

POSTS = st.sampled_from(["normal", "normal", "urgent", "close"])


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.box: Mailbox[Item] = Mailbox("box", self._weigh)
        self.urgent: list[Item] = []
        self.normal: list[Item] = []
        self.posted = self.taken = 0
        self.closed = self.ended = False
        self._numbers = count()
        self._meanwhile: list[Callable[[], None]] = []
        self._is_taking = False

    def _weigh(self, item: Item) -> int:
        if self._is_taking and self._meanwhile:
            self._is_taking = False  # the caller also weighs the items that it posts now
            self._meanwhile.pop(0)()
            self._is_taking = True
        return item[2]

    @rule(weight=st.integers(0, 4))
    def post(self, weight: int) -> None:
        item = ("normal", next(self._numbers), weight)
        self.box.post(item)
        self.posted += weight
        if not self.closed:
            self.normal.append(item)

    @precondition(lambda self: not self.closed)
    @rule()
    def post_urgent(self) -> None:
        item = ("urgent", next(self._numbers), 1)
        self.box.post_urgent(item)
        self.urgent.append(item)

    @precondition(lambda self: not self.closed and self.posted > 8)
    @rule()
    def close(self) -> None:
        self.box.close()
        self.closed = True

    @precondition(lambda self: self.normal)
    @rule(limit=st.integers(3, 6))
    def take_while_urgent_comes(self, limit: int) -> None:
        self.take(limit, ["urgent", "urgent"])

    @rule(limit=st.integers(1, 6), posts=st.lists(POSTS, max_size=4))
    def take(self, limit: int, posts: list[str]) -> None:
        calls = {"normal": lambda: self.post(2), "urgent": self._urgent_meanwhile, "close": self._close_meanwhile}
        self._meanwhile = [calls[post] for post in posts]
        urgent_before = len(self.urgent)
        self._is_taking = True
        taken = self.box.take(limit, timeout=0)
        self._is_taking = False
        self._meanwhile = []
        self._check_taken(taken, limit, urgent_before)

    def _urgent_meanwhile(self) -> None:
        if not self.closed:
            self.post_urgent()

    def _close_meanwhile(self) -> None:
        if not self.closed:
            self.close()

    def _check_taken(self, taken: list[Item] | None, limit: int, urgent_before: int) -> None:
        if taken is None:
            assert self.closed
            assert not self.urgent
            assert not self.normal
            self.ended = True
            return
        assert not self.ended
        urgent = [item for item in taken if item[0] == "urgent"]
        normal = [item for item in taken if item[0] == "normal"]
        assert taken == urgent + normal, "what is urgent comes first"
        assert urgent == self.urgent[: len(urgent)], "in the order of posting"
        assert len(urgent) >= urgent_before
        assert normal == self.normal[: len(normal)], "in the order of posting"
        del self.urgent[: len(urgent)], self.normal[: len(normal)]
        self._check_weight([item[2] for item in normal], limit)

    def _check_weight(self, weights: list[int], limit: int) -> None:
        self.taken += sum(weights)
        assert sum(weights[:-1]) < limit, "the item that reaches the limit is the last one"
        if sum(weights) < limit:
            assert not self.urgent, "there was room for what is left"
            assert not self.normal, "there was room for what is left"

    @invariant()
    def offsets_count_weights(self) -> None:
        assert self.box.max_offset == self.posted
        assert self.box.consume_offset == self.taken


TestMailbox = as_test(MailboxMachine, runs=100)
