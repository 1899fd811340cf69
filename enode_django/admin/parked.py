"""Parked events in the admin: view, retry, skip, answer and correct them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import DatabaseFilter, within
from enode_django.admin.linking import WithLinks, with_links
from enode_django.admin.moments import WithMoments
from enode_django.admin.settling import GONE, Settling
from enode_django.admin.showing import (
    SCRIPTS,
    STYLES,
    VIEW_PAYLOAD,
    NamedValues,
    WithError,
    WithSubscriber,
    without_hidden,
)
from enode_django.exceptions import EnodeError
from enode_django.models import OperatorAction, ParkedEvent

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from enode_django.eventing.event_subscription import EventSubscription
    from enode_django.eventing.parking import Parked

    ParkedBase = admin.ModelAdmin[ParkedEvent]
    ParkedEvents = QuerySet[ParkedEvent]
else:  # generic for the type checker only
    ParkedBase = admin.ModelAdmin


@admin.register(ParkedEvent)
class ParkedEventAdmin(Audited, WithMoments, WithLinks, Settling, WithSubscriber, WithError, ParkedBase):
    """Users with ``change_parkedevent`` retry and skip parked events, which blocks the request, and send new commands.
    To correct events, users need ``add_eventcorrection`` and ``view_payload``."""

    change_list_template = "enode_django/admin/list.html"
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
    readonly_fields = (*fields, *WithLinks.linked, "hidden_error", "answering", "correcting")
    actions = ("retry", "skip")
    buttons = (("retry", "Retry"), ("skip", "Skip …"))

    class Media:
        css = STYLES
        js = SCRIPTS

    def get_urls(self) -> list[URLPattern]:
        made: URLPattern = path(
            "<path:object_id>/command/",
            self.admin_site.admin_view(self.new_command),
            name="enode_django_parkedevent_command",
        )
        correction: URLPattern = path(
            "<path:object_id>/correct/",
            self.admin_site.admin_view(self.correct_events),
            name="enode_django_parkedevent_correct",
        )
        return [made, correction, *super().get_urls()]

    def get_fields(self, request: HttpRequest, obj: ParkedEvent | None = None) -> tuple[str, ...]:
        answer = ["answering"] if self.has_settle_permission(request) else []
        is_event = obj is not None and obj.version is not None
        correction = ["correcting"] if is_event and self.has_correct_permission(request) else []
        return with_links(without_hidden([*self.fields, *answer, *correction], request), request)

    def has_view_permission(self, request: HttpRequest, obj: ParkedEvent | None = None) -> bool:
        return self.has_settle_permission(request) or bool(request.user.has_perm("enode_django.view_parkedevent"))

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
        url = _url(parked, "command")
        return format_html('<a href="{}">Send a new command</a>', url)

    def new_command(self, request: HttpRequest, object_id: str) -> HttpResponse:
        from enode_django.admin.new_commands import cause_of, new_command  # see the package

        if not self.has_settle_permission(request):
            raise PermissionDenied
        parked = self.get_object(request, unquote(object_id))
        if parked is None:
            raise Http404("no parked event has this number; it may have been settled meanwhile")
        cause = cause_of(parked)
        if not request.user.has_perm("enode_django.view_payload"):
            cause = cause._replace(fields={})
        back = _url(parked, "change")
        listing = within(parked._state.db or "", reverse("admin:enode_django_parkedevent_changelist"))
        crumbs = [(listing, "Parked events"), (back, str(parked))]
        return new_command(self, request, parked, cause, back=back, crumbs=crumbs)

    @admin.display(description="correction")
    def correcting(self, parked: ParkedEvent) -> SafeString:
        return format_html('<a href="{}">Correct the events</a>', _url(parked, "correct"))

    def correct_events(self, request: HttpRequest, object_id: str) -> HttpResponse:
        from enode_django.admin.correcting import correct_events  # see the package

        if not (self.has_view_permission(request) and self.has_correct_permission(request)):
            raise PermissionDenied
        parked = self.get_object(request, unquote(object_id))
        if parked is None:
            raise Http404("no parked event has this number; it may have been settled meanwhile")
        listing = within(parked._state.db or "", reverse("admin:enode_django_parkedevent_changelist"))
        crumbs = [(listing, "Parked events"), (_url(parked, "change"), str(parked))]
        return correct_events(self, request, parked, back=listing, crumbs=crumbs)

    def has_correct_permission(self, request: HttpRequest) -> bool:
        """Return True for users who may add corrections and view payloads: the form shows the fields of the events."""
        return bool(request.user.has_perms(["enode_django.add_eventcorrection", VIEW_PAYLOAD]))

    @admin.action(description="Retry, and catch up", permissions=["settle"])
    def retry(self, request: HttpRequest, chosen: ParkedEvents) -> None:
        from enode_django.eventing.unparking import retry_parked  # see the package

        def retry(subscription: EventSubscription, parked: ParkedEvent) -> Parked | None:
            return retry_parked(subscription, parked.aggregate_root_id)

        self._settle(request, chosen, "retry", retry)

    @admin.action(description="Skip the parked event, and go on", permissions=["settle"])
    def skip(self, request: HttpRequest, chosen: ParkedEvents) -> HttpResponse | None:
        from enode_django.eventing.unparking import skip_parked  # see the package

        confirmed = self.confirmed(request, chosen)
        if confirmed is None:
            last = "This cannot be undone. Only a rebuild of a projection handles its events again."
            return self.confirm(request, chosen, "skip", title="Skip parked events", button="Skip it", last=last)

        def skip(subscription: EventSubscription, parked: ParkedEvent) -> Parked | None:
            # Another event may have failed since the list was shown.
            return skip_parked(subscription, parked.aggregate_root_id, command_id=parked.command_id)

        self._settle(request, confirmed, "skip", skip)
        return None

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


def _url(parked: ParkedEvent, page: str) -> str:
    return within(parked._state.db or "", reverse(f"admin:enode_django_parkedevent_{page}", args=[parked.pk]))
