"""Batch jobs, to be watched and cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.safestring import SafeString

from enode_django.admin.showing import ReadOnly, as_json, preformatted
from enode_django.exceptions import EnodeError
from enode_django.job_leases import request_cancel, with_lease_state
from enode_django.job_texts import duration_of, in_words, state_of
from enode_django.models import Job, JobState

if TYPE_CHECKING:
    from django.db.models import QuerySet

    JobBase = admin.ModelAdmin[Job]
else:  # generic for the type checker only
    JobBase = admin.ModelAdmin


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
        return preformatted(as_json(job.figures))

    @admin.display(description="error")
    def shown_error(self, job: Job) -> SafeString:
        return preformatted(job.error or "-")

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
