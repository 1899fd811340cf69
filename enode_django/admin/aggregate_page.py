"""The content of an aggregate's page: timeline, state, difference, causation, subscribers and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError
from django.http import Http404

from enode_django.admin import links, stream_list
from enode_django.admin.causation_picture import Box, Picture, picture_of
from enode_django.admin.stream_contents import Summary, summary_of_row
from enode_django.admin.values import Line, lines_of, path_text, text_of
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.limits import holds
from enode_django.exceptions import EnodeError, StoreUnavailable
from enode_django.history import Causation, State, causation, difference, reached, state_at, tables
from enode_django.history.states import MOST_REPLAYED
from enode_django.ids import MAX_ID_LENGTH
from enode_django.models import EventStream

MOST_CHANGES = 500
_LAST = 2**63 - 1


class Choice(forms.Form):
    """The parameters in the URL of a page: the version, the version to compare it with, and the version below which the
    timeline begins; or the command whose causation is shown, since a refused command has no version."""

    version = forms.IntegerField(required=False, min_value=1, max_value=_LAST)
    other = forms.IntegerField(required=False, min_value=0, max_value=_LAST)
    below = forms.IntegerField(required=False, min_value=1, max_value=_LAST)
    command = forms.CharField(required=False, max_length=MAX_ID_LENGTH, strip=False)


class TimelineRow(NamedTuple):
    """``summary`` is None for users who may not read contents."""

    stream: EventStream
    summary: Summary | None


def with_user_names(timeline: Sequence[TimelineRow]) -> Sequence[TimelineRow]:
    """Replace the keys of users that exist by their names."""
    names = user_names({row.summary.user for row in timeline if row.summary})
    return [
        row._replace(summary=row.summary._replace(user=names.get(row.summary.user, row.summary.user)))
        if row.summary
        else row
        for row in timeline
    ]


def user_names(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the names of those users that exist, by primary key as text. Other systems may have written any text."""
    model: Any = get_user_model()
    known = [key for text in keys if (key := _key(model, text)) is not None]
    return {str(key): user.get_username() for key, user in model._default_manager.in_bulk(known).items()}


def _key(model: Any, text: str) -> Any:
    """Return the text as a primary key; None if it is not one."""
    with suppress(ValidationError):
        return model._meta.pk.clean(text, None) if text and "\0" not in text else None
    return None


class ShownState(NamedTuple):
    """``trouble`` says why the state cannot be shown."""

    version: int
    lines: Sequence[Line] = ()
    trouble: str = ""


class ShownChange(NamedTuple):
    path: str
    kind: str
    before: str
    after: str


class ShownDifference(NamedTuple):
    changes: Sequence[ShownChange] = ()
    trouble: str = ""


class LinkedBox(NamedTuple):
    box: Box
    url: str


class ShownCausation(NamedTuple):
    picture: Picture | None = None
    boxes: Sequence[LinkedBox] = ()
    cut: Sequence[str] = ()
    searched: str = ""
    trouble: str = ""


class Aggregate:
    """An aggregate that has rows. Raises `Http404` if it has none."""

    def __init__(self, store: EventStore, id: str) -> None:
        self.id = id
        self.alias = tables.alias_of(store, id) if holds(id) else ""
        if not self.alias:
            raise Http404
        newest = stream_list.newest(self.alias, id).first()
        refused = None if newest else stream_list.refusals(self.alias, id).first()
        row = newest or refused
        if row is None:
            raise Http404
        self.type = row.aggregate_root_type
        self.head = row.version or 0

    def timeline(self, below: int | None, *, with_contents: bool) -> Sequence[TimelineRow]:
        rows = stream_list.newest(self.alias, self.id, self.head if below is None else below - 1)
        if with_contents:
            rows = stream_list.with_small_events(rows)
        return [TimelineRow(row, summary_of_row(row)) for row in rows]

    @property
    def refusals(self) -> Sequence[EventStream]:
        return sorted(stream_list.refusals(self.alias, self.id), key=lambda row: -row.sequence)

    @property
    def shown_shard(self) -> str:
        """Return the alias of the shard; empty if there is only one shard."""
        return self.alias if len(tables.aliases()) > 1 else ""

    @property
    def url(self) -> str:
        return links.aggregate_url(self.id)


def shown_state(id: str, version: int) -> ShownState:
    state = _state_or_trouble(id, version)
    if isinstance(state, str):
        return ShownState(version, trouble=state)
    return ShownState(version, lines_of(state.fields))


def shown_difference(id: str, before: int, after: int) -> ShownDifference:
    """Compare the states at two versions. The state at version 0, before the first event, is empty."""
    states = [_state_or_trouble(id, version) if version else State("", id, 0, {}) for version in (before, after)]
    for state in states:
        if isinstance(state, str):
            return ShownDifference(trouble=state)
    one, other = (state for state in states if isinstance(state, State))
    changes = difference(one, other)
    return ShownDifference(
        [
            ShownChange(path_text(change.path), change.kind, text_of(change.before), text_of(change.after))
            for change in changes[:MOST_CHANGES]
        ],
        f"only the first {MOST_CHANGES} of {len(changes):,} are shown" if len(changes) > MOST_CHANGES else "",
    )


def _state_or_trouble(id: str, version: int) -> State | str:
    try:
        return state_at(id, version, most=MOST_REPLAYED)
    except StoreUnavailable:
        raise
    except EnodeError as error:
        return f"there is no state to show: {error}"


def shown_causation(id: str, version: int | None, command_id: str) -> ShownCausation:
    try:
        found: Causation = causation(id, version, command_id=command_id)
    except (EnodeError, OperationalError, InterfaceError) as error:  # another shard than its own may be away
        return ShownCausation(trouble=str(error))
    picture = picture_of(found)
    boxes = [LinkedBox(box, links.step_url(box.step) if box.step else "") for box in picture.boxes]
    return ShownCausation(picture, boxes, found.cut, found.searched)


def page_of(aggregate: Aggregate, choice: Choice, *, with_contents: bool) -> dict[str, Any]:
    """Return the context of the template. An invalid parameter counts as missing, a version above the head as the
    head."""
    asked = choice.cleaned_data
    id, head = aggregate.id, aggregate.head
    version = min(asked.get("version") or head, head)
    command = asked.get("command") or ""
    timeline = aggregate.timeline(asked.get("below"), with_contents=with_contents)
    context: dict[str, Any] = {
        "aggregate": aggregate,
        "version": version,
        "timeline": with_user_names(timeline),
        "older": timeline[-1].stream.version if timeline and (timeline[-1].stream.version or 0) > 1 else None,
        "is_newest": asked.get("below") is None,
        "reached": reached(id) if head else (),
        "command": command,
    }
    if with_contents:
        if head:
            other = asked.get("other")
            other = version - 1 if other is None else min(other, head)
            context |= {"other": other, "state": shown_state(id, version)}
            context["difference"] = shown_difference(id, other, version)
        if command or head:
            context["causation"] = shown_causation(id, None if command else version, command)
    return context
