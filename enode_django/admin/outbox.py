"""Commands that wait in databases, in the admin: the outbox, and scheduled commands with deadlines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db import DatabaseError, router
from django.http import HttpRequest
from django.utils.safestring import SafeString

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import DatabaseFilter
from enode_django.admin.linking import WithLinks
from enode_django.admin.moments import WithMoments
from enode_django.admin.settling import Settling, confirmed
from enode_django.admin.showing import VIEW_PAYLOAD, IndexedTexts, ModelAdmin, NamedValues, WithError, WithSubscriber
from enode_django.models import OutboxCommand, ScheduledCommand
from enode_django.models.outbox import headed

if TYPE_CHECKING:
    from django.db.models import QuerySet

    Rows = QuerySet[Any]

DUE_FIRST = 10_000
"""Rows whose values a filter offers."""


def outboxes() -> list[str]:
    """Return the databases with an outbox, first the one that the routers choose."""
    from enode_django.outbox.rows import has_table
    from enode_django.runtime import outbox_databases  # see the package

    first = router.db_for_write(OutboxCommand)
    return [first, *(alias for alias in outbox_databases() if alias != first and _holds(has_table, alias))]


def _holds(has_table: Callable[[str], bool], alias: str) -> bool:
    try:
        return has_table(alias)
    except DatabaseError:  # it is away; the status says so
        return False


class OutboxFilter(DatabaseFilter):
    """Offer the databases that have an outbox."""

    offered = staticmethod(outboxes)


class WaitingCommands(WithMoments, WithLinks, Settling, Audited):
    """Mixin for an admin class of encoded commands that wait in a database."""

    offered = staticmethod(outboxes)

    def get_queryset(self, request: HttpRequest) -> Rows:
        return headed(super().get_queryset(request))

    def object_id_of(self, row: Any) -> str:
        return str(row.command_id)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        more = ["message"] if request.user.has_perm(VIEW_PAYLOAD) else []
        return (*super().get_fields(request, obj), *more)

    @admin.display(description="message")
    def message(self, row: Any) -> SafeString:
        from enode_django.admin.readable import preformatted_message

        return preformatted_message(bytes(row.body))

    def settle(
        self,
        request: HttpRequest,
        chosen: Rows,
        action: str,
        done: str,
        settle: Callable[[str, Sequence[int]], Sequence[int]],
    ) -> None:
        """Do something with the chosen rows, and log those that were still there."""
        rows = list(chosen)
        settled = set(settle(chosen.db, [row.pk for row in rows]))
        self.message_user(request, f"{len(settled)} of {len(rows)} commands were {done}", messages.SUCCESS)
        for row in (one for one in rows if one.pk in settled):
            self.done(request, row, action, done)


@admin.register(OutboxCommand)
class OutboxCommandAdmin(WaitingCommands, WithError, ModelAdmin):
    """Users with ``change_outboxcommand`` send again what was rejected, and discard commands."""

    when_empty = "No command waits: the relay has sent all of them."
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "a whole aggregate root id or command id"
    list_display = ("__str__", "aggregate_root_id", "written_at", "rejected_at")
    list_filter = (OutboxFilter, ("rejected_at", admin.EmptyFieldListFilter))
    ordering = ("pk",)
    fields = ("command_id", "aggregate_root_id", "written_at", "rejected_at", "shown_error")
    actions = ("retry", "discard")
    buttons = (("retry", "Send again"), ("discard", "Discard …"))

    def get_queryset(self, request: HttpRequest) -> Rows:
        return super().get_queryset(request).defer("error")

    @admin.action(description="Send again what was rejected", permissions=["settle"])
    def retry(self, request: HttpRequest, chosen: Rows) -> None:
        from enode_django.operating.outbox import retry_in

        self.settle(request, chosen.filter(rejected_at__isnull=False), "retry", "given to the relay", retry_in)

    @admin.action(description="Discard for good", permissions=["settle"])
    @confirmed(title="Discard commands", button="Discard", last="This cannot be undone.")
    def discard(self, request: HttpRequest, chosen: Rows) -> None:
        from enode_django.operating.outbox import discard_in

        self.settle(request, chosen, "discard", "discarded", discard_in)

    def consequence_of(self, row: Any) -> str:
        return f"The {row} is deleted, and never handled."


class SubscriberFilter(NamedValues, IndexedTexts):
    """Commands without a subscriber are in the index of their ids."""

    index_of_others = "command_id"


class DueFirst(NamedValues):
    """Offer the values of the `DUE_FIRST` rows that are due first, for a field that begins no index."""

    lookup_choices: Any

    def __init__(self, field: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(field, *arguments, **named)
        rows = self.lookup_choices.model.objects.using(self.lookup_choices.db).order_by("due_at", "pk")
        self.lookup_choices = sorted(set(rows.values_list(field.name, flat=True)[:DUE_FIRST]))


@admin.register(ScheduledCommand)
class ScheduledCommandAdmin(WaitingCommands, WithSubscriber, ModelAdmin):
    """Users with ``change_scheduledcommand`` cancel scheduled commands and deadlines, and fire them now."""

    when_empty = "No command waits for its time."
    list_display = ("__str__", "aggregate_root_id", "due_at", "shown_subscriber", "scope", "name")
    list_filter = (OutboxFilter, ("subscriber", SubscriberFilter), ("name", DueFirst))
    search_fields = ("aggregate_root_id__exact", "command_id__exact", "scope__exact")
    search_help_text = "a whole aggregate root id, command id or scope"
    ordering = ("due_at", "pk")
    fields = ("command_id", "aggregate_root_id", "due_at", "scheduled_at", "shown_subscriber", "scope", "name")
    actions = ("fire", "cancel")
    buttons = (("fire", "Fire now …"), ("cancel", "Cancel …"))

    @admin.action(description="Fire now", permissions=["settle"])
    @confirmed(title="Fire commands now", button="Fire", last="That cannot be undone.")
    def fire(self, request: HttpRequest, chosen: Rows) -> None:
        from enode_django.operating.outbox import fire_in

        self.settle(request, chosen, "fire", "given to the relay", fire_in)

    @admin.action(description="Cancel for good", permissions=["settle"])
    @confirmed(title="Cancel commands", button="Cancel them", last="That cannot be undone.")
    def cancel(self, request: HttpRequest, chosen: Rows) -> None:
        from enode_django.operating.outbox import cancel_in

        self.settle(request, chosen, "cancel", "cancelled", cancel_in)

    def consequence_of(self, row: Any) -> str:
        return f"It concerns the {row}, due at {row.due_at:%Y-%m-%d %H:%M:%S %Z}."
