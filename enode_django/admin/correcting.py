"""The pages that correct the events of a parked stream: a form with their JSON, a confirmation, the correction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse

from enode_django.admin.operating import Operation, operate
from enode_django.exceptions import CorrectionRefused, EnodeError
from enode_django.models import ParkedEvent
from enode_django.operating.actions import LONGEST_REASON
from enode_django.operating.correcting import Retried, handled_before, retry_all
from enode_django.operating.corrections import (
    Editable,
    check,
    check_taking_back,
    correct,
    editable,
    json_of,
    take_back,
)
from enode_django.runtime import make_store

STAYS = "The event stays as it was stored. Everything that reads it from now on reads the correction."
TAKEN_BACK = "From now on, everything reads the event as it was stored."


class CorrectEvents(Operation):
    """The form of a correction of ``stream`` by the user of the name ``by``."""

    title, button = "Correct the events", "Correct them, and try again"

    events = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 20, "cols": 100, "spellcheck": "false"}),
        help_text="As JSON. The types must stay, and the fields must be those of the present classes.",
    )
    original = forms.BooleanField(
        required=False, label="Take the correction back", help_text="The original counts again, not the JSON above."
    )
    reason = forms.CharField(
        max_length=LONGEST_REASON, widget=forms.Textarea(attrs={"rows": 3, "cols": 100}), help_text="It is kept."
    )
    last = forms.IntegerField(widget=forms.HiddenInput, min_value=0)

    def __init__(self, stream: Editable, by: str, data: Mapping[str, Any] | None) -> None:
        events = json.dumps(stream.events, indent=2, ensure_ascii=False)
        super().__init__(data, initial={"events": events, "last": stream.last})
        self.stream = stream
        self.by = by

    def clean(self) -> None:
        if self.cleaned_data["original"] or "events" not in self.cleaned_data:
            return
        try:
            json_of(self.cleaned_data["events"])
        except CorrectionRefused as error:
            self.add_error("events", str(error))

    def consequences(self) -> Iterator[str]:
        id, version = self.stream.aggregate_root_id, self.stream.version
        if self.cleaned_data["original"]:
            check_taking_back(make_store(), id, version, self.cleaned_data["last"])
            yield TAKEN_BACK
        else:
            check(make_store(), id, version, self._given, self.cleaned_data["last"])
            yield STAYS
        yield from (f"{text}." for text in handled_before(id, version))
        yield f"Every subscriber that has parked {id} tries it again now."

    def perform(self) -> str:
        id, version, about = self.stream.aggregate_root_id, self.stream.version, self.cleaned_data
        said: dict[str, Any] = {"by": self.by, "reason": about["reason"], "last": about["last"]}
        if about["original"]:
            made, done = take_back(make_store(), id, version, **said), "took the correction back of"
        else:
            made, done = correct(make_store(), id, version, self._given, **said), "corrected"
        retried = list(retry_all(id))
        outcomes = "; ".join(map(_outcome, retried)) or "nothing is parked"
        self.quoted = "".join(f"; {each.subscriber}: {each.error}" for each in retried if each.error)
        return f"{done} version {version} of {id} by correction {made.number}: {outcomes}"

    @property
    def _given(self) -> Any:
        return json_of(self.cleaned_data["events"])


def _outcome(retried: Retried) -> str:
    if retried.error:
        return f"{retried.subscriber} could not retry it"
    if retried.parked is not None:
        return f"{retried.subscriber} is still parked: {retried.parked.error_type}"
    return f"{retried.subscriber} goes on"


def correct_events(
    admin: Any, request: HttpRequest, parked: ParkedEvent, *, back: str, crumbs: Sequence[tuple[str, str]]
) -> HttpResponse:
    """Show the pages of a correction. The caller checks that the user may correct and read events. ``parked`` gets the
    entry in the admin's log. Raises `Http404` for a refusal, and for events that cannot be corrected."""
    if parked.version is None:
        raise Http404("this is a refusal; only events can be corrected")
    try:
        stream = editable(make_store(), parked.aggregate_root_id, parked.version)
    except EnodeError as error:
        raise Http404(str(error)) from error
    return operate(
        admin,
        request,
        lambda data: CorrectEvents(stream, request.user.get_username(), data),
        log=lambda _, done: admin.done(request, parked, "correct", done),
        log_failure=lambda _, error: admin.failed(request, parked, "correct", error),
        back=lambda _: back,
        crumbs=crumbs,
    )
