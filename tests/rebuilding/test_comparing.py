"""Comparisons before a swap: the compared rows, the fields that are left out, and the messages."""

from __future__ import annotations

import itertools

import pytest
from django.db.models import JSONField, Value

from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ProjectionsDiffer, RebuildError
from enode_django.rebuilding import checking, putting_in_use
from enode_django.rebuilding.comparing import EXAMPLES
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import plan, rebuild
from enode_django.rebuilding.results import describe
from tests.following.domain import Added, Opened
from tests.following.harness import Harness
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balance, Balances, Effects, Posting, PostingLine, Postings, Seat, Seats
from tests.rebuilding.histories import follow, nothing, some_history
from tests.rebuilding.tables import sql


@pytest.fixture
def followed(postings: Harness) -> Harness:
    some_history(postings, "a", "b", "c")
    follow()
    return postings


def test_surrogate_keys_and_foreign_keys_to_them_and_volatile_fields_are_left_out(followed: Harness) -> None:
    sql(
        "ALTER SEQUENCE rebuilding_posting_id_seq RESTART 1000",
        "ALTER SEQUENCE rebuilding_postingline_id_seq RESTART 2000",
    )
    follow()
    followed.stored("d", Added(amount=1))
    follow()
    Posting.objects.update(made_at="2001-01-01T00:00:00Z")
    comparison = rebuild(Postings.name, InProcess(), nothing).comparison
    assert comparison.is_equal
    assert (comparison.compared, comparison.apart) == (4, 0)


def test_values_that_differ_behind_what_is_shown_are_named(followed: Harness, effects: Effects) -> None:
    def write(text: str) -> None:
        PostingLine.objects.filter(account="a", posting__amount=10).update(text="long " * 100 + text)

    write("in use")
    effects.posting = lambda event: write("rebuilt")
    (told,) = describe(rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison)
    assert told.startswith("rebuilding_postingline of a: text: rebuilt 'long long ")


def test_a_changed_a_missing_and_a_further_row_are_told_apart(followed: Harness) -> None:
    PostingLine.objects.filter(account="a", posting__amount=10).update(text="changed")
    Balance.objects.filter(pk="b").update(total=-1, count=7)
    posting = Posting.objects.get(account="c", amount=2)
    PostingLine.objects.create(posting=posting, account="c", text="more")
    comparison = rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison
    assert comparison.rows == 2, "a row that has changed is one row"
    assert describe(comparison) == [
        "rebuilding_postingline of a: text: rebuilt 'adds 10', in use 'changed'",
        "rebuilding_postingline of c: only in use {'text': 'more', 'account': 'c', "
        "'posting': {'once': None, 'amount': 2, 'account': 'c'}}",
    ]
    comparison = rebuild(Balances.name, InProcess(), nothing, compare_only=True).comparison
    assert describe(comparison) == [
        "rebuilding_balance of b: count: rebuilt 2, in use 7; total: rebuilt 11, in use -1",
    ]
    assert schemas() == []


def test_rows_of_unknown_aggregates_are_counted_as_they_are_told(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed row is two, since nothing says that they belong together."""
    monkeypatch.setattr(Postings, "aggregate_field", "")
    PostingLine.objects.filter(text="adds 2").update(text="changed")
    PostingLine.objects.create(posting=Posting.objects.get(account="c", amount=2), account="c", text="more")
    comparison = rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison
    told = describe(comparison)
    assert comparison.rows == len(told) == 3
    assert [line.split("{")[0] for line in told] == [
        "rebuilding_postingline: only rebuilt ",
        "rebuilding_postingline: only in use ",
        "rebuilding_postingline: only in use ",
    ]


def test_the_changed_rows_of_an_aggregate_are_paired_by_what_they_have_in_common(followed: Harness) -> None:
    followed.stored("d", *(Added(amount=number) for number in range(4)))
    follow()
    PostingLine.objects.get(text="adds 0", account="d").delete()
    for before, after in (("adds 1", "z"), ("adds 2", "y"), ("adds 3", "x")):
        PostingLine.objects.filter(text=before, account="d").update(text=after)
    comparison = rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison
    assert comparison.rows == 4
    assert sorted(describe(comparison)) == [
        "rebuilding_postingline of d: only rebuilt {'text': 'adds 0', 'account': 'd', "
        "'posting': {'once': None, 'amount': 0, 'account': 'd'}}",
        "rebuilding_postingline of d: text: rebuilt 'adds 1', in use 'z'",
        "rebuilding_postingline of d: text: rebuilt 'adds 2', in use 'y'",
        "rebuilding_postingline of d: text: rebuilt 'adds 3', in use 'x'",
    ]


def test_no_row_is_told_to_be_missing_because_its_aggregate_has_many_that_have_changed(followed: Harness) -> None:
    followed.stored("d", *(Added(amount=number) for number in range(EXAMPLES + 1)))
    follow()
    PostingLine.objects.filter(account="a", posting__amount=10).delete()  # a row that is not one of a pair
    PostingLine.objects.filter(account="d").update(text="changed")
    comparison = rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison
    assert comparison.rows == EXAMPLES + 2
    told = describe(comparison)
    assert len(told) == EXAMPLES
    assert [line.partition(" {")[0] for line in told if "only" in line] == ["rebuilding_postingline of a: only rebuilt"]


def test_columns_may_be_called_like_the_parts_of_the_comparison(postings: Harness) -> None:
    with subscribers.only(Seats):
        postings.stored("a", Added(amount=1), Added(amount=2))
        postings.stored("b", Added(amount=3))
        follow(Seats)
        Seat.objects.filter(pk="a-2").update(row=7)
        comparison = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    assert describe(comparison) == ["rebuilding_seat of a: row: rebuilt 2, in use 7"]


def test_a_surplus_row_of_an_aggregate_whose_other_rows_are_as_they_were_is_found(postings: Harness) -> None:
    with subscribers.only(Seats):
        postings.stored("a", Added(amount=1))
        postings.stored("b", Added(amount=2))
        follow(Seats)
        Seat.objects.create(id="more", account="a", row=1)
        comparison = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    assert comparison.rows == 1
    assert describe(comparison)[0].startswith("rebuilding_seat of a: only in use {'id': 'more'")


def test_one_of_two_rows_that_mean_the_same_is_missed(followed: Harness) -> None:
    followed.stored("d", Added(amount=1), Added(amount=1))
    follow()
    line = PostingLine.objects.filter(account="d").latest("pk")
    line.delete()
    line.posting.delete()
    comparison = rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison
    assert comparison.rows == 2, "the posting and its line"
    assert [line.split("{")[0] for line in describe(comparison)] == [
        "rebuilding_posting of d: only rebuilt ",
        "rebuilding_postingline of d: only rebuilt ",
    ]


def test_a_sample_of_rows_that_name_no_aggregate_is_held_against_all_rows(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postings, "aggregate_field", "")
    assert rebuild(Postings.name, InProcess(), nothing, compare_only=True, sample=1).comparison.is_equal


def test_no_value_is_another_value_than_a_null_of_json(postings: Harness) -> None:
    with subscribers.only(Seats):
        postings.stored("a", Added(amount=1))
        follow(Seats)
        Seat.objects.update(note=Value(None, JSONField()))
        assert not Seat.objects.filter(note__isnull=True).exists()
        comparison = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    assert describe(comparison) == ["rebuilding_seat of a: note IS NULL: rebuilt True, in use False"]


def test_a_volatile_field_of_json_or_a_volatile_key_is_not_compared(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postings, "volatile", ("made_at", "posting"))
    PostingLine.objects.filter(account="a").update(posting=Posting.objects.get(account="b", amount=1))
    assert rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison.rows == 0
    monkeypatch.setattr(Seats, "volatile", ("note",))
    with subscribers.only(Seats):
        follow(Seats)
        Seat.objects.update(note=1)
        assert rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison.rows == 0


def test_a_fraction_of_json_is_another_value_than_a_text(postings: Harness, effects: Effects) -> None:
    effects.note = {"part": 0.1}
    with subscribers.only(Seats):
        postings.stored("a", Added(amount=1))
        follow(Seats)
        Seat.objects.update(note={"part": "0.1"})
        comparison = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    assert describe(comparison) == ["rebuilding_seat of a: note: rebuilt {'part': 0.1}, in use {'part': '0.1'}"]


def test_a_number_of_json_is_another_value_than_a_truth_and_the_same_as_an_equal_number(
    postings: Harness, effects: Effects
) -> None:
    effects.note = 1
    with subscribers.only(Seats):
        postings.stored("a", Added(amount=1))
        follow(Seats)
        Seat.objects.update(note=Value(1.0, JSONField()), fields=7)
        same = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
        Seat.objects.update(note=Value(True, JSONField()))
        other = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    assert describe(same) == ["rebuilding_seat of a: fields: rebuilt 0, in use 7"]
    assert describe(other) == ["rebuilding_seat of a: fields: rebuilt 0, in use 7; note: rebuilt 1, in use True"]


def test_a_row_that_is_there_twice_is_found_in_a_table_that_migrations_did_not_make(
    postings: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the model says that its key is unique."""
    monkeypatch.setattr(Seat._meta, "managed", False)
    sql("ALTER TABLE rebuilding_seat DROP CONSTRAINT rebuilding_seat_pkey")
    try:
        with subscribers.only(Seats):
            postings.stored("a", Added(amount=1))
            follow(Seats)
            sql("INSERT INTO rebuilding_seat SELECT * FROM rebuilding_seat")
            comparison = rebuild(Seats.name, InProcess(), nothing, compare_only=True).comparison
    finally:
        sql("TRUNCATE rebuilding_seat", "ALTER TABLE rebuilding_seat ADD PRIMARY KEY (id)")
    assert comparison.rows == 1


def test_a_column_that_was_added_meanwhile_is_a_difference(followed: Harness) -> None:
    def alter(stage: str, **figures: object) -> None:
        if stage == "compare":
            sql("ALTER TABLE rebuilding_balance ADD COLUMN more int DEFAULT 7")

    try:
        comparison = rebuild(Balances.name, InProcess(), alter, compare_only=True).comparison
    finally:
        sql("ALTER TABLE rebuilding_balance DROP COLUMN more")
    assert describe(comparison)[0] == "rebuilding_balance of a: more: rebuilt has no such column, in use 7"
    assert (comparison.rows, comparison.compared) == (3, 3)


def test_differences_are_told_up_to_a_number_and_a_length(postings: Harness) -> None:
    some_history(postings, *(f"c{n:03}" for n in range(50)))
    follow()
    Posting.objects.update(once=None)
    PostingLine.objects.filter(text="adds 10").update(text="x" * 100_000)
    with pytest.raises(ProjectionsDiffer, match="51 rows differ among 50 aggregates") as raised:
        rebuild(Postings.name, InProcess(), nothing)
    lines = str(raised.value).splitlines()
    assert len(lines) <= EXAMPLES + 2
    assert max(map(len, lines)) < 1_000


def test_a_projection_that_does_not_say_whose_its_rows_are_is_not_compared_while_events_keep_coming(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postings, "aggregate_field", "")
    monkeypatch.setattr(checking, "LOOKS", 2)
    monkeypatch.setattr(checking, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(putting_in_use, "SWAPS", 2)
    monkeypatch.setattr(putting_in_use, "FIRST_PAUSE", 0.01)
    assert rebuild(Postings.name, InProcess(), nothing, compare_only=True).comparison.is_equal
    followed.stored("a", Added(amount=1), after=3)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_posting: not compared: at no moment did it hold the same"):
        rebuild(Postings.name, InProcess(), nothing)
    follow()
    assert rebuild(Postings.name, InProcess(), nothing).comparison.is_whole


def test_handlers_that_depend_on_more_than_the_events_are_found_before_the_swap(
    followed: Harness, effects: Effects
) -> None:
    numbers = itertools.count()

    def count(row: Balance, event: object) -> None:
        row.count = next(numbers)

    effects.balance = count
    with pytest.raises(RebuildError, match=r"rebuilding.balances does not come out the same each time it is replayed:"):
        rebuild(Balances.name, InProcess(), nothing, accept_differences=True)
    assert schemas() == []


def test_handlers_that_fail_only_now_and_then_are_found_before_the_swap(followed: Harness, effects: Effects) -> None:
    tries = itertools.count()

    def fail_later(event: object) -> None:
        if isinstance(event, Opened) and event.aggregate_root_id == "b" and next(tries):
            raise ValueError("not again")

    effects.posting = fail_later
    with pytest.raises(RebuildError, match="b: replayed again up to version 0, rebuilt up to version 3"):
        rebuild(Postings.name, InProcess(), nothing, accept_differences=True)


def test_a_volatile_field_that_no_model_has_is_told_before_anything_is_done(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Balances, "volatile", ("seen",))
    with pytest.raises(RebuildError, match=r"rebuilding.balances calls 'seen' volatile, but none of its models has"):
        plan(subscribers.instance(Balances).name)


def test_aggregates_that_the_store_does_not_have_are_not_swapped_away_without_a_word(followed: Harness) -> None:
    sql("DELETE FROM enode_django_eventstream WHERE aggregate_root_id = 'c'")
    for name in (Postings.name, Balances.name):
        with pytest.raises(ProjectionsDiffer, match="c: rebuilt up to version 0, in use up to version 3"):
            rebuild(name, InProcess(), nothing)
