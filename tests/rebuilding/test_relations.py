"""Rows with foreign keys to each other are rebuilt, and compared by the rows that they point to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ProjectionsDiffer
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Book, Books, Label, Posting, PostingLine, Postings, Room, Suite, Suites, Visit
from tests.rebuilding.histories import follow, nothing, some_history
from tests.rebuilding.tables import sql


@pytest.fixture
def books(postings: Harness) -> Iterator[Harness]:
    with subscribers.only(Books, Postings):
        for id in ("a", "b"):
            postings.stored(id, Added(amount=1), Added(amount=2), Added(amount=3))
        follow(Books)
        yield postings


Shelved = Book.labels.through
"""The model of the rows between books and labels."""


def labelled() -> list[tuple[str, int, int | None, list[str]]]:
    return [
        (book.account, book.number, book.before and book.before.number, sorted(texts(book)))
        for book in Book.objects.order_by("account", "number")
    ]


def texts(book: Book) -> list[str]:
    return list(Shelved._base_manager.filter(book=book).values_list("label__text", flat=True))


BOOKS = [
    (account, number, number - 1 or None, sorted([f"is {number}", "odd" if number % 2 else "even"]))
    for account in ("a", "b")
    for number in (1, 2, 3)
]


def test_many_to_many_tables_are_rebuilt_and_surrogate_keys_make_no_difference(books: Harness) -> None:
    for table in ("book", "label", "book_labels"):
        sql(f"ALTER SEQUENCE rebuilding_{table}_id_seq RESTART 1000")
    rebuilt = rebuild(Books.name, InProcess(), nothing)
    assert rebuilt.comparison.is_equal
    assert rebuilt.comparison.is_whole
    assert labelled() == BOOKS
    books.stored("a", Added(amount=4), after=3)
    follow(Books)
    assert labelled()[3] == ("a", 4, 3, ["even", "is 4"])
    assert rebuild(Books.name, InProcess(), nothing).comparison.compared == 2


def test_a_many_to_many_row_that_points_elsewhere_is_a_difference(books: Harness) -> None:
    """The number of rows is the same as before."""
    row = Shelved._base_manager.get(book__account="a", book__number=1, label__text="odd")
    row.label = Label.objects.get(account="a", text="even")
    row.save()
    with pytest.raises(ProjectionsDiffer, match="1 rows differ among 2 agg") as raised:
        rebuild(Books.name, InProcess(), nothing)
    assert "rebuilding_book_labels of a: label: rebuilt {'text': 'odd'" in str(raised.value)
    assert schemas() == []


def test_a_many_to_many_row_that_is_wrong_is_found_though_its_aggregate_has_moved_on(books: Harness) -> None:
    Shelved._base_manager.filter(book__account="a", book__number=1).delete()

    def move_on(stage: str, **figures: object) -> None:
        if stage == "compare":
            for id in ("a", "b"):
                books.stored(id, Added(amount=4), after=3)

    with pytest.raises(ProjectionsDiffer, match=r"2 rows differ among 2 agg.*\n  rebuilding_book_labels of a: only r"):
        rebuild(Books.name, InProcess(), move_on)


def test_a_foreign_key_that_points_elsewhere_is_a_difference(books: Harness) -> None:
    Book.objects.filter(account="b", number=3).update(before=Book.objects.get(account="b", number=1))
    with pytest.raises(ProjectionsDiffer) as raised:
        rebuild(Books.name, InProcess(), nothing)
    assert "rebuilding_book of b: before: rebuilt {'number': 2, 'account': 'b'}, in use {'number': 1" in str(
        raised.value
    )


def test_a_foreign_key_to_a_surrogate_key_is_compared_by_the_row_that_it_points_to(books: Harness) -> None:
    some_history(books, "c")
    follow(Postings)
    line = PostingLine.objects.get(account="c", text="adds 0")
    line.posting = Posting.objects.get(account="c", amount=10)
    line.save()
    with pytest.raises(ProjectionsDiffer, match=r"rebuilding_postingline of c: posting: rebuilt {'once': None, 'am"):
        rebuild(Postings.name, InProcess(), nothing)


@pytest.fixture
def suites(postings: Harness) -> Iterator[Harness]:
    with subscribers.only(Suites):
        for number, id in enumerate("abc"):
            postings.stored(id, Added(amount=number))
        follow(Suites)
        sql("ALTER SEQUENCE rebuilding_room_id_seq RESTART 1000")
        yield postings


def test_a_key_to_a_proxy_is_compared_by_the_row_of_the_table(suites: Harness) -> None:
    before = dict(Visit.objects.values_list("account", "room__number"))
    assert rebuild(Suites.name, InProcess(), nothing).comparison.is_equal
    assert rebuild(Suites.name, InProcess(), nothing).comparison.is_whole
    assert dict(Visit.objects.values_list("account", "room__number")) == before == {"a": 0, "b": 1, "c": 2}
    assert dict(Suite.objects.values_list("account", "text")) == {"a": "a", "b": "b", "c": "c"}


def test_a_row_of_a_model_that_is_named_by_its_proxy_is_compared(suites: Harness) -> None:
    Room.objects.filter(account="b").update(number=9)
    with pytest.raises(ProjectionsDiffer, match="rebuilding_room of b: number: rebuilt 1, in use 9"):
        rebuild(Suites.name, InProcess(), nothing)
    Room.objects.filter(account="b").update(number=1)
    Visit.objects.filter(account="b").update(room_id=Room.objects.get(account="a").pk)
    with pytest.raises(ProjectionsDiffer, match=r"rebuilding_visit of b: room: rebuilt {'number': 1"):
        rebuild(Suites.name, InProcess(), nothing)


def test_a_row_of_inheritance_belongs_to_the_aggregate_of_its_other_half(suites: Harness) -> None:
    Suite.objects.filter(account="b").update(text="changed")
    with pytest.raises(ProjectionsDiffer, match="rebuilding_suite of b: text: rebuilt 'b', in use 'changed'"):
        rebuild(Suites.name, InProcess(), nothing)


class Visits(Suites):
    """Keeps visits of a room that it does not write."""

    name = "rebuilding.visits"
    abstract = True
    models = (Visit,)

    def added(self, event: Added) -> None:
        Visit.objects.create(account=event.aggregate_root_id, room_id=event.amount)


def test_a_key_to_a_row_of_another_table_is_compared_as_it_is(postings: Harness) -> None:
    for number in (1, 2):
        Room.objects.create(pk=number, account="", number=number)
    with subscribers.only(Visits):
        postings.stored("a", Added(amount=1))
        follow(Visits)
        Visit.objects.update(room_id=2)
        with pytest.raises(ProjectionsDiffer, match="rebuilding_visit of a: room_id: rebuilt 1, in use 2"):
            rebuild(Visits.name, InProcess(), nothing)
