"""Filters and queries of the list of streams. Their cost does not grow with the table.

A page is read by the primary key, newest first. The links to the next pages carry a sequence, so no query counts or
skips rows. There is no index by type, time or metadata, since it would slow down every write. Times are turned into
sequences. For all other filters a page reads sequences for about `PATIENCE`, and offers to go on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.db import connections
from django.db.models import Q

from enode_django.admin.packed import has_type, metadata_names, small_events
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.statements import ABOUT_ROWS
from enode_django.history import tables
from enode_django.ids import MAX_ID_LENGTH
from enode_django.models import EventStream
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from django.db.models import QuerySet

ENVELOPE = (
    "sequence",
    "aggregate_root_type",
    "aggregate_root_id",
    "version",
    "command_id",
    "command_type",
    "created_at",
)
PAGE = 50
WINDOW = 4_000
"""The number of sequences that the first query of a filtered page reads. Each further query reads twice as many."""
WINDOW_OF_CONTENTS = 500
"""The same for filters on the contents of rows, which are slower to read."""
PATIENCE = 0.08
"""Seconds after which a page begins no further query. The last query lasts about as long as all before it."""
CLOCKS_DIFFER = timedelta(seconds=5)
"""The tolerated difference between the clocks of workers, by which the times of rows may be out of order."""
COUNTED = 10_000
NO_CONTENTS = "You may not view the contents of event streams, nor filter by them."
LONGEST_ID = 2 * MAX_ID_LENGTH + 20
"""Characters. The id of an event contains the id of its aggregate, that of a refusal the id of the command, too."""
_LAST = 2**63 - 1


class MomentField(forms.DateTimeField):
    """A moment in UTC. A moment whose year UTC or the database does not have is invalid."""

    def clean(self, value: Any) -> datetime | None:
        moment = super().clean(value)
        try:
            return moment.astimezone(UTC) if isinstance(moment, datetime) else None
        except (OverflowError, ValueError) as error:
            raise forms.ValidationError("Enter a time that has a year from 1 to 9999 in UTC, too.") from error


class Filters(forms.Form):
    """The filters in the URL of a page. With ``q`` the other filters are ignored, and everything is searched. Filters
    on the contents of streams are valid only for users who ``may_read`` them."""

    q = forms.CharField(required=False, max_length=LONGEST_ID, strip=False, label="Id")
    shard = forms.ChoiceField(required=False)
    type = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Aggregate type")
    command = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Command type")
    event = forms.CharField(required=False, max_length=MAX_ID_LENGTH, label="Event or refusal type")
    about = forms.CharField(required=False, max_length=LONGEST_ID, label="Correlation, causation or request id")
    since = MomentField(required=False, label="From")
    until = MomentField(required=False, label="Before")
    before = forms.IntegerField(required=False, min_value=1, max_value=_LAST)
    after = forms.IntegerField(required=False, min_value=0, max_value=_LAST)

    contents = ("event", "about")

    def __init__(self, data: Any, *, may_read: bool = False) -> None:
        super().__init__(data)
        self.may_read = may_read
        self.aliases = tables.aliases()
        shard = self.fields["shard"]
        assert isinstance(shard, forms.ChoiceField)
        shard.choices = [(alias, alias) for alias in self.aliases]

    def clean(self) -> None:
        for name in self.contents:
            if self.cleaned_data.get(name) and not self.may_read:
                self.add_error(name, NO_CONTENTS)

    @property
    def alias(self) -> str:
        return self.cleaned_data.get("shard") or self.aliases[0]

    @property
    def wanted_types(self) -> dict[str, str]:
        """Return the wanted types as conditions of a query."""
        asked = {
            "aggregate_root_type": self.cleaned_data.get("type"),
            "command_type": self.cleaned_data.get("command"),
        }
        return {column: name for column, name in asked.items() if name}

    @property
    def wanted_contents(self) -> Sequence[Q]:
        """Return the wanted contents as conditions of a query."""
        event, about = self.cleaned_data.get("event"), self.cleaned_data.get("about")
        return [*([has_type(event)] if event else ()), *([metadata_names(about)] if about else ())]

    @property
    def window(self) -> int:
        """Return the number of sequences that the first query reads."""
        if self.wanted_contents:
            return WINDOW_OF_CONTENTS
        is_filtered = self.wanted_types or self.cleaned_data["since"] or self.cleaned_data["until"]
        return WINDOW if is_filtered else _LAST


class Listing(NamedTuple):
    """A page of rows, the newest first. ``older`` is the sequence below which the next older page begins, ``newer`` the
    one above which the next newer page begins; None if there is no such page. ``looked_to`` is the last sequence that
    was read, if the page stopped before it was full."""

    rows: Sequence[EventStream]
    older: int | None = None
    newer: int | None = None
    looked_to: int | None = None


def listing(form: Filters) -> Listing:
    """Return the page that a valid form asks for. Blocks."""
    asked, alias = form.cleaned_data, form.alias
    rows = (with_small_events(envelopes(alias)) if form.may_read else envelopes(alias)).filter(
        *form.wanted_contents, **form.wanted_types
    )
    low, high = _bounds(alias, asked["since"], asked["until"])
    if asked["since"]:
        rows = rows.filter(created_at__gte=asked["since"])
    if asked["until"]:
        rows = rows.filter(created_at__lt=asked["until"])
    if asked["after"] is not None:
        return _ascending(rows, max(low, asked["after"] + 1), high, form.window)
    before = asked["before"]
    high = high if before is None else min(high, before - 1)
    return _descending(rows, low, high, form.window, is_first=before is None)


def envelopes(alias: str) -> QuerySet[EventStream]:
    """Return the streams of a shard without their contents, which may be long."""
    return tables.streams(alias).only(*ENVELOPE)


def _bounds(alias: str, since: datetime | None, until: datetime | None) -> tuple[int, int]:
    low = tables.sequence_at(alias, _shifted(since, -CLOCKS_DIFFER)) if since else 1
    high = tables.sequence_at(alias, _shifted(until, CLOCKS_DIFFER)) - 1 if until else tables.last_sequence(alias)
    return low, high


def _shifted(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:  # before year 1, or after 9999
        return moment


def _descending(rows: QuerySet[EventStream], low: int, high: int, size: int, *, is_first: bool) -> Listing:
    found, rest = _fill(rows.order_by("-sequence"), windows(low, high, size))
    page = found[:PAGE]
    newer = None if is_first else (page[0].sequence if page else high)
    if len(found) > PAGE:
        return Listing(page, page[-1].sequence, newer)
    if rest is None:
        return Listing(page, None, newer)
    return Listing(page, rest[0], newer, looked_to=rest[0])


def _ascending(rows: QuerySet[EventStream], low: int, high: int, size: int) -> Listing:
    found, rest = _fill(rows.order_by("sequence"), _mirrored(low, high, size))
    page = found[:PAGE][::-1]
    older = page[-1].sequence if page else low
    if len(found) > PAGE:
        return Listing(page, older, page[0].sequence)
    if rest is None:
        return Listing(page, older, None)
    return Listing(page, older, rest[1], looked_to=rest[1])


def windows(low: int, high: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield windows from the top down, each twice as large as the one before it.

    >>> list(windows(1, 25, 5))
    [(21, 25), (11, 20), (1, 10)]
    """
    while high >= low:
        yield max(low, high - size + 1), high
        high -= size
        size *= 2


def _mirrored(low: int, high: int, size: int) -> Iterator[tuple[int, int]]:
    """Return windows from the bottom up."""
    return ((low + high - top, low + high - bottom) for bottom, top in windows(low, high, size))


Window = tuple[int, int]


def _fill(rows: QuerySet[EventStream], parts: Iterator[Window]) -> tuple[list[EventStream], Window | None]:
    """Return up to `PAGE` + 1 rows. Return also the last window that was read, None if no window is left unread."""
    found: list[EventStream] = []
    deadline = time.monotonic() + PATIENCE
    part = next(parts, None)
    while part is not None:
        found += rows.filter(sequence__range=part)[: PAGE + 1 - len(found)]
        following = next(parts, None)
        if following is not None and (len(found) > PAGE or time.monotonic() > deadline):
            return found, part
        part = following
    return found, None


# -- queries by an index ------------------------------------------------------------------------------------------


def by_command(alias: str, command_id: str) -> QuerySet[EventStream]:
    return tables.rows_of_command(alias, command_id).only(*ENVELOPE)


def newest(alias: str, aggregate_root_id: str, until: int = _LAST) -> QuerySet[EventStream]:
    """Return up to `PAGE` versions of an aggregate from ``until`` downwards."""
    rows = envelopes(alias).filter(aggregate_root_id=aggregate_root_id, version__lte=until)
    return rows.order_by("-version")[:PAGE]


def with_small_events(rows: QuerySet[EventStream]) -> QuerySet[EventStream]:
    """Add ``metadata`` and ``small_events``: the events, or None if they are larger than `SMALL` bytes."""
    return rows.only(*ENVELOPE, "metadata").annotate(small_events=small_events())


def refusals(alias: str, aggregate_root_id: str) -> QuerySet[EventStream]:
    """Return up to `PAGE` refusals of an aggregate, roughly the newest: they come in the order of the index, since
    sorting would read all of them."""
    rows = envelopes(alias).filter(aggregate_root_id=aggregate_root_id, version__isnull=True)
    return rows.order_by("-version")[:PAGE]


# -- beside the list ----------------------------------------------------------------------------------------------


def aggregate_names() -> Sequence[str]:
    """Return the sorted type names and aliases of the aggregates that this process knows, without their base class."""
    return sorted(
        name for name in types.names_of(AggregateRoot) if types.class_of(AggregateRoot, name) is not AggregateRoot
    )


def known_types() -> dict[str, Sequence[str]]:
    """Return the type names that this process knows, for suggestions: the table may have others, and reading them would
    read all of it."""
    happened = {*types.names_of(DomainEvent), *types.names_of(DomainException)}
    return {
        "aggregates": aggregate_names(),
        "commands": sorted(types.names_of(Command)),
        "events": sorted(happened),
    }


def size_in_words(alias: str) -> str:
    """Return the number of rows as text: exact up to `COUNTED`, the database's estimate above.

    The estimate dates from the last ``VACUUM`` or ``ANALYZE``. Before the first one there is none, and the text for a
    large table is "more than" `COUNTED`. Blocks.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute(ABOUT_ROWS)
        ((estimate,),) = cursor.fetchall()
    if estimate > COUNTED:
        return f"about {estimate:,}"
    counted = tables.streams(alias).values("pk")[: COUNTED + 1].count()
    return f"more than {COUNTED:,}" if counted > COUNTED else f"{counted:,}"
