from __future__ import annotations

import logging

import pytest

from enode_django.bus.results import (
    RECEIPT_MAX_BYTES,
    CommandResult,
    CommandStatus,
    decode_result,
    encode_receipt,
    encode_result,
    failure,
)
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.equeue.offsets import OffsetWindow

KEY = ("c", "x")


def window() -> OffsetWindow:
    return OffsetWindow("commands", 0, epoch=1, committed=0, deadline=10.0)


def nothing_changed(id: str = "c", value: object = None) -> CommandResult:
    return CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id=id, aggregate_root_id="x", value=value)


def test_answers_are_loaded_once_a_lease_and_the_newest_count() -> None:
    loads: list[OffsetWindow] = []

    def load(window: OffsetWindow) -> list[bytes]:
        loads.append(window)
        return [encode_receipt(nothing_changed(f"{n}")) for n in range(5)]

    remembered, first, second = RememberedAnswers(3, load), window(), window()
    for lease in (first, first, second, second):
        assert [remembered.find(lease, (f"{n}", "x")) is not None for n in range(5)] == [False, False, True, True, True]
    assert loads == [first, second]


def test_an_answer_given_under_a_lease_that_is_over_is_not_remembered_for_the_next() -> None:
    remembered, first, second = RememberedAnswers(3, lambda window: ()), window(), window()
    remembered.of(first)
    remembered.of(second)
    first.add([0])
    remembered.add(first, 0, nothing_changed())
    first.finish(0)
    assert first.next_commit(3).receipts == []
    assert remembered.find(second, KEY) is None


def test_with_a_limit_of_zero_nothing_is_loaded_and_nothing_kept() -> None:
    remembered, lease = RememberedAnswers(0, lambda window: pytest.fail("loaded")), window()
    lease.add([0])
    assert remembered.find(lease, KEY) is None
    remembered.add(lease, 0, nothing_changed())
    lease.finish(0)
    assert remembered.find(lease, KEY) is None
    assert lease.next_commit(10).receipts == []


def test_a_receipt_that_cannot_be_read_is_logged_and_the_others_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    remembered = RememberedAnswers(3, lambda window: [b"\xc1", encode_receipt(nothing_changed())])
    assert remembered.find(window(), KEY) == (nothing_changed(), "")
    assert "a remembered answer cannot be read" in caplog.text


@pytest.mark.parametrize("text", ["x" * 100_000, "🗝" * 100_000], ids=["ascii", "wide"])
def test_a_failure_says_the_same_when_it_is_remembered_however_long_its_text_is(text: str) -> None:
    answer = failure("c" * 255, "🗝" * 255, ValueError(text))
    assert len(answer.error_message) < 1_100
    assert answer.error_message.startswith(text[:1_000])
    assert encode_receipt(answer) == encode_result(answer)


@pytest.mark.parametrize(
    "large",
    [
        nothing_changed(value="v" * 100_000),
        CommandResult(
            status=CommandStatus.REFUSED,
            command_id="c",
            aggregate_root_id="x",
            error_type="bank.NotNow",
            error_message="m" * 100_000,
            error_fields={"field": "f" * 100_000},
        ),
    ],
    ids=["value", "refusal"],
)
def test_a_large_answer_is_remembered_without_what_makes_it_large(large: CommandResult) -> None:
    receipt = encode_receipt(large)
    assert len(receipt) <= RECEIPT_MAX_BYTES
    again = decode_result(receipt)
    assert (again.status, again.error_type) == (large.status, large.error_type)
    assert (again.value, again.error_fields) == (None, {})
    assert large.error_message.startswith(again.error_message)
