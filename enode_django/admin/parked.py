"""Parked events in the admin: view, retry, skip, answer and correct them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import DatabaseFilter
from enode_django.admin.linking import WithLinks, link
from enode_django.admin.moments import WithMoments
from enode_django.admin.settling import GONE, Settling, confirmed
from enode_django.admin.showing import (
    VIEW_PAYLOAD,
    ModelAdmin,
    NamedValues,
    WithError,
    WithSubscriber,
    page_at,
)
from enode_django.exceptions import EnodeError
from enode_django.models import OperatorAction, ParkedEvent

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from enode_django.eventing.event_subscription import EventSubscription
    from enode_django.eventing.parking import Parked

    ParkedEvents = QuerySet[ParkedEvent]


@admin.register(ParkedEvent)
class ParkedEventAdmin(WithMoments, WithLinks, Settling, Audited, WithSubscriber, WithError, ModelAdmin):
    """Users with ``change_parkedevent`` retry and skip parked events, which blocks the request, and send new commands.
    To correct events, users need ``add_eventcorrection`` and ``view_payload``."""

    when_empty = "No event is parked here."
    list_display = (
        "aggregate_root_id",
        "shown_subscriber",
        "version",
        "error_type",
        "attempts",
        "last_failed_at",
        "next_try_at",
    )
    list_filter = (DatabaseFilter, "subscriber", ("error_type", NamedValues))
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "a whole aggregate root id or command id"
    ordering = ("-last_failed_at",)
    show_full_result_count = True
    fields = (
        "shown_subscriber",
        "aggregate_root_type",
        "aggregate_root_id",
        "version",
        "command_id",
        "attempts",
        "first_failed_at",
        "last_failed_at",
        "next_try_at",
        "error_type",
        "shown_error",
    )
    actions = ("retry", "skip")
    buttons = (("retry", "Retry"), ("skip", "Skip …"))

    def get_urls(self) -> list[URLPattern]:
        return [
            page_at(self, "<path:object_id>/command/", self.new_command, "command", self.has_settle_permission),
            page_at(self, "<path:object_id>/correct/", self.correct_events, "correct", self.has_correct_permission),
            *super().get_urls(),
        ]

    def get_fields(self, request: HttpRequest, obj: ParkedEvent | None = None) -> tuple[str, ...]:
        answer = ["answering"] if self.has_settle_permission(request) else []
        is_event = obj is not None and obj.version is not None
        correction = ["correcting"] if is_event and self.has_correct_permission(request) else []
        return (*super().get_fields(request, obj), *answer, *correction)

    def object_id_of(self, row: ParkedEvent) -> str:
        return row.aggregate_root_id

    def name_of_gone(self, actions: Iterable[OperatorAction]) -> str:
        """Return the aggregate, with the subscriber if the details of an action begin with it, as `_settle` says it."""
        known = list(actions)
        id = known[0].object_id
        begins = (action.details.partition(f": {id} ") for action in known)
        names = [name for name, found, _ in begins if found and " " not in name]
        return f"event of {id} that {names[0]} had parked" if names else f"parked event of {id}"

    @admin.display(description="answer")
    def answering(self, parked: ParkedEvent) -> SafeString:
        return link(self.url_of(parked, "command"), "Send a new command")

    def new_command(self, request: HttpRequest, object_id: str) -> HttpResponse:
        from enode_django.admin.new_commands import cause_of, new_command  # see the package

        parked = self._found(request, object_id)
        cause = cause_of(parked)
        if not request.user.has_perm(VIEW_PAYLOAD):
            cause = cause._replace(fields={})
        back, crumbs = self.url_of(parked), self._crumbs(parked)
        return new_command(self, request, parked, cause, back=back, crumbs=crumbs)

    @admin.display(description="correction")
    def correcting(self, parked: ParkedEvent) -> SafeString:
        return link(self.url_of(parked, "correct"), "Correct the events")

    def correct_events(self, request: HttpRequest, object_id: str) -> HttpResponse:
        from enode_django.admin.correcting import correct_events  # see the package

        parked = self._found(request, object_id)
        return correct_events(self, request, parked, back=self.list_url_of(parked), crumbs=self._crumbs(parked))

    def _found(self, request: HttpRequest, object_id: str) -> ParkedEvent:
        parked: ParkedEvent | None = self.get_object(request, unquote(object_id))
        if parked is None:
            raise Http404("no parked event has this number; it may have been settled meanwhile")
        return parked

    def _crumbs(self, parked: ParkedEvent) -> list[tuple[str, str]]:
        return [(self.list_url_of(parked), "Parked events"), (self.url_of(parked), str(parked))]

    def has_correct_permission(self, request: HttpRequest) -> bool:
        """Return True for users who may also add corrections and view payloads: the form shows the fields of the
        events."""
        may_edit = bool(request.user.has_perms(["enode_django.add_eventcorrection", VIEW_PAYLOAD]))
        return may_edit and self.has_view_permission(request)

    @admin.action(description="Retry, and catch up", permissions=["settle"])
    def retry(self, request: HttpRequest, chosen: ParkedEvents) -> None:
        from enode_django.eventing.unparking import retry_parked  # see the package

        def retry(subscription: EventSubscription, parked: ParkedEvent) -> Parked | None:
            return retry_parked(subscription, parked.aggregate_root_id)

        self._settle(request, chosen, "retry", retry)

    @admin.action(description="Skip the parked event, and go on", permissions=["settle"])
    @confirmed(
        title="Skip parked events",
        button="Skip it",
        last="This cannot be undone. Only a rebuild of a projection handles its events again.",
    )
    def skip(self, request: HttpRequest, chosen: ParkedEvents) -> None:
        from enode_django.eventing.unparking import skip_parked  # see the package

        def skip(subscription: EventSubscription, parked: ParkedEvent) -> Parked | None:
            # Another event may have failed since the list was shown.
            return skip_parked(subscription, parked.aggregate_root_id, command_id=parked.command_id)

        self._settle(request, chosen, "skip", skip)

    def consequence_of(self, row: ParkedEvent) -> str:
        name, what = self.shown_subscriber(row), _what(row)
        if not row.attempts:
            return f"{capfirst(what)} of {row.aggregate_root_id} waits behind what {name} failed at: it is not skipped."
        return f"The subscriber {name} never handles {what} of {row.aggregate_root_id}, and goes on with what follows."

    def _settle(
        self,
        request: HttpRequest,
        chosen: ParkedEvents,
        action: str,
        settle: Callable[[EventSubscription, ParkedEvent], Parked | None],
    ) -> None:
        """Settle each chosen aggregate once. Of its rows, the one that failed counts, not those that wait behind it."""
        from enode_django.runtime import subscription_of  # see the package

        failed_last = sorted(chosen, key=lambda parked: parked.attempts > 0)
        rows = {(parked.subscriber, parked.aggregate_root_id): parked for parked in failed_last}
        if not rows:
            self.message_user(request, GONE, messages.WARNING)
        for (key, id), parked in rows.items():
            name = self.shown_subscriber(parked)
            try:
                with subscription_of(key) as subscription:
                    left = settle(subscription, parked)
            except EnodeError as error:
                self.message_user(request, f"subscriber {name}: {id}: {error}", messages.ERROR)
                continue
            said = f"{name}: {id} goes on" if left is None else f"{name}: {id} is still parked: {left.error_type}"
            self.done(request, parked, action, f"{said}; skipped: {_what(parked)}" if action == "skip" else said)
            level = messages.SUCCESS if left is None else messages.WARNING
            self.message_user(request, f"subscriber {said}", level)  # Django makes the first letter a capital one


def _what(parked: ParkedEvent) -> str:
    is_refusal = parked.version is None
    return f"the refusal of command {parked.command_id}" if is_refusal else f"the events of version {parked.version}"
