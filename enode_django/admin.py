"""The event store in the admin, to look at and never to change; what is parked, to be retried or skipped; batch jobs,
to be cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from enode_django.eventing.follower import Follower
from enode_django.eventing.parking import Parked
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import EnodeError, MessageError
from enode_django.job_leases import request_cancel, with_lease_state
from enode_django.job_texts import duration_of, in_words, state_of
from enode_django.models import EventStream, Job, JobState, ParkedEvent
from enode_django.runtime import follower_of
from enode_django.serialization.codec import StoredRefusal, read_stored
from enode_django.serialization.plain import unpack

if TYPE_CHECKING:
    from django.db.models import QuerySet

    StreamBase = admin.ModelAdmin[EventStream]
    ParkedBase = admin.ModelAdmin[ParkedEvent]
    ParkedEvents = QuerySet[ParkedEvent]
    JobBase = admin.ModelAdmin[Job]
else:  # generic for the type checker only
    StreamBase = ParkedBase = JobBase = admin.ModelAdmin


class ReadOnly:
    """Nobody adds, changes or deletes, superusers neither."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(EventStream)
class EventStreamAdmin(ReadOnly, StreamBase):
    """Read-only for everybody. Searching is by exact id, which the unique indexes answer."""

    list_display = ("sequence", "created_at", "aggregate_root_type", "aggregate_root_id", "version", "command_type")
    list_display_links = ("sequence",)
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "an aggregate root id or a command id, whole"
    ordering = ("-sequence",)
    show_full_result_count = False
    fields = (
        "sequence",
        "created_at",
        "aggregate_root_type",
        "aggregate_root_id",
        "version",
        "command_type",
        "command_id",
        "decoded_events",
        "decoded_metadata",
        "transaction_id",
    )
    readonly_fields = fields

    @admin.display(description="events")
    def decoded_events(self, stream: EventStream) -> SafeString:
        try:
            stored = read_stored(bytes(stream.events))
        except MessageError as error:
            return _preformatted(str(error))
        if isinstance(stored, StoredRefusal):
            return _preformatted(_json({"refused": stored.type_name, "message": stored.message, **stored.fields}))
        shown: dict[str, Any] = {"events": [{event.type_name: event.fields} for event in stored.events]}
        if stored.result is not None:
            shown["result"] = stored.result
        return _preformatted(_json(shown))

    @admin.display(description="metadata")
    def decoded_metadata(self, stream: EventStream) -> SafeString:
        metadata = bytes(stream.metadata)
        try:
            return _preformatted(_json(unpack(metadata) if metadata else {}))
        except MessageError as error:
            return _preformatted(str(error))


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
        return _preformatted(parked.error)

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


@admin.register(Job)
class JobAdmin(ReadOnly, JobBase):
    """Read-only but for an action, which needs the permission to change jobs."""

    list_display = ("id", "kind", "name", "shown_state", "shown_progress", "started_at", "duration")
    list_filter = ("kind", "state")
    search_fields = ("name", "task_id__exact")
    search_help_text = "a part of the name, or the id of a Celery task, whole"
    ordering = ("-id",)
    show_full_result_count = False
    fields = (
        "kind",
        "name",
        "shown_state",
        "started_at",
        "finished_at",
        "duration",
        "shown_progress",
        "shown_figures",
        "shown_error",
        "cancel_requested_at",
        "lease_until",
        "owner",
        "task_id",
    )
    readonly_fields = fields
    actions = ("cancel",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return with_lease_state(super().get_queryset(request))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("enode_django.change_job"))

    @admin.display(description="state", ordering="state")
    def shown_state(self, job: Job) -> str:
        return state_of(job)

    @admin.display(description="progress")
    def shown_progress(self, job: Job) -> str:
        return in_words(job.progress) or "-"

    @admin.display(description="duration")
    def duration(self, job: Job) -> str:
        return duration_of(job)

    @admin.display(description="figures")
    def shown_figures(self, job: Job) -> SafeString:
        return _preformatted(_json(job.figures))

    @admin.display(description="error")
    def shown_error(self, job: Job) -> SafeString:
        return _preformatted(job.error or "-")

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        for job in chosen.filter(state=JobState.RUNNING):
            try:
                request_cancel(job.pk)
            except EnodeError as error:  # it has ended meanwhile
                self.message_user(request, str(error), messages.WARNING)
                continue
            self.log_change(request, job, "cancel")
            self.message_user(request, f"job {job.pk} ({job.kind} of {job.name}) was asked to stop", messages.SUCCESS)


def _json(value: Any) -> str:
    return json.dumps(_with_text_keys(value), indent=2, ensure_ascii=False, default=str)


def _with_text_keys(value: Any) -> Any:
    """JSON knows no other keys than text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _preformatted(text: str) -> SafeString:
    return format_html('<pre style="white-space: pre-wrap; margin: 0">{}</pre>', text)
