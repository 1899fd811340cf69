"""What is parked, to be retried or skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.safestring import SafeString

from enode_django.admin.showing import ReadOnly, preformatted
from enode_django.eventing.follower import Follower
from enode_django.eventing.parking import Parked
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import EnodeError
from enode_django.models import ParkedEvent
from enode_django.runtime import follower_of

if TYPE_CHECKING:
    from django.db.models import QuerySet

    ParkedBase = admin.ModelAdmin[ParkedEvent]
    ParkedEvents = QuerySet[ParkedEvent]
else:  # generic for the type checker only
    ParkedBase = admin.ModelAdmin


@admin.register(ParkedEvent)
class ParkedEventAdmin(ReadOnly, ParkedBase):
    """Read-only but for two actions, which need the permission to change parked events and run in the request."""

    list_display = ("aggregate_root_id", "subscriber", "version", "error_type", "attempts", "last_failed_at")
    list_filter = ("subscriber", "error_type")
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "an aggregate root id or a command id, whole"
    ordering = ("-last_failed_at",)
    fields = (
        "subscriber",
        "aggregate_root_type",
        "aggregate_root_id",
        "version",
        "command_id",
        "attempts",
        "first_failed_at",
        "last_failed_at",
        "error_type",
        "shown_error",
    )
    readonly_fields = fields
    actions = ("retry", "skip")

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("enode_django.change_parkedevent"))

    @admin.display(description="error")
    def shown_error(self, parked: ParkedEvent) -> SafeString:
        return preformatted(parked.error)

    @admin.action(description="Retry, and catch up", permissions=["settle"])
    def retry(self, request: HttpRequest, chosen: ParkedEvents) -> None:
        self._settle(request, chosen, retry_parked)

    @admin.action(description="Skip what it is parked at, and go on", permissions=["settle"])
    def skip(self, request: HttpRequest, chosen: ParkedEvents) -> None:
        self._settle(request, chosen, skip_parked)

    def _settle(
        self, request: HttpRequest, chosen: ParkedEvents, settle: Callable[[Follower, str], Parked | None]
    ) -> None:
        rows = {(parked.subscriber, parked.aggregate_root_id): parked for parked in chosen}
        for (name, id), parked in rows.items():
            try:
                with follower_of(name) as follower:
                    left = settle(follower, id)
            except EnodeError as error:
                self.message_user(request, f"{name}: {id}: {error}", messages.ERROR)
                continue
            self.log_change(request, parked, f"{settle.__name__} of {name}")
            if left is None:
                self.message_user(request, f"{name}: {id} goes on", messages.SUCCESS)
            else:
                self.message_user(request, f"{name}: {id} is still parked: {left.error_type}", messages.WARNING)
