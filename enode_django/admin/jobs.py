"""Batch jobs in the admin: start, watch, cancel and delete them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from enode_django.admin.auditing import Audited, audit
from enode_django.admin.linking import has_pages, link, list_url
from enode_django.admin.moments import WithMoments
from enode_django.admin.operating import operate
from enode_django.admin.showing import (
    HIDDEN,
    SCRIPTS,
    VIEW_PAYLOAD,
    Listed,
    ModelAdmin,
    WithError,
    WithTexts,
    page_at,
    preformatted,
    type_of_error,
)
from enode_django.exceptions import EnodeError
from enode_django.jobs.error_texts import message_of
from enode_django.jobs.leases import request_cancel, with_lease_state
from enode_django.jobs.texts import duration_of, figures_of, progress_of, state_of
from enode_django.models import Job, JobState

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from enode_django.admin.job_operations import JobOperation

LIST = "admin:enode_django_job_changelist"
MOST_WATCHED = 500


@admin.register(Job)
class JobAdmin(Audited, WithMoments, Listed, WithTexts, WithError, ModelAdmin):
    """Users with ``add_job`` start jobs (an export needs ``view_payload``, too), with ``change_job`` cancel them, with
    ``delete_job`` delete those that have ended; each of these permissions allows to view them, too. A script updates
    the progress of running jobs."""

    change_list_template = "enode_django/admin/jobs.html"
    when_empty = "No job has run. Start one here, by Celery beat, or by manage.py."
    list_display = ("id", "kind", "shown_name", "shown_state", "shown_progress", "started_at", "shown_duration")
    list_filter = ("kind", "state")
    search_fields = ("name", "task_id__exact")
    search_help_text = "a part of the name, or the whole id of a Celery task"
    ordering = ("-id",)
    fields = (
        "kind",
        "shown_name",
        "shown_state",
        "started_at",
        "finished_at",
        "shown_duration",
        "shown_progress",
        "shown_figures",
        "shown_error",
        "cancel_requested_at",
        "lease_until",
        "owner",
        "task_id",
    )
    actions = ("cancel",)
    help_texts = {
        "owner": "The id of the run that has the job. Another run that takes the job over writes its own id.",
        "task_id": "The id of the Celery task that runs the job; a dash if a command runs it.",
    }

    class Media(Listed.Media):
        js = (*SCRIPTS, "enode_django/jobs.js")

    def get_urls(self) -> list[URLPattern]:
        return [
            page_at(self, "progress/", self.progress, "progress", self.has_view_permission),
            page_at(self, "start/<slug:kind>/", self.start, "start", self.has_start_permission),
            *super().get_urls(),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return with_lease_state(super().get_queryset(request))

    def get_fields(self, request: HttpRequest, obj: Job | None = None) -> tuple[str, ...]:
        from enode_django.admin.job_operations import STARTS  # see the package

        form = STARTS.get(obj.kind) if obj is not None and obj.state == JobState.FAILED else None
        may_start = form is not None and request.user.has_perms(form.permissions)
        names = (*super().get_fields(request, obj), *(["starting_again"] if may_start else []))
        if request.user.has_perm(VIEW_PAYLOAD):
            return names
        return tuple("some_figures" if name == "shown_figures" else name for name in names)

    # -- permissions ----------------------------------------------------------------------------------------------

    def has_start_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("enode_django.add_job"))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("enode_django.change_job"))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        rights = ("view", "change", "add", "delete")
        return any(request.user.has_perm(f"enode_django.{right}_job") for right in rights)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        has_ended = obj is None or obj.state != JobState.RUNNING
        return has_ended and bool(request.user.has_perm("enode_django.delete_job"))

    # -- pages and columns ----------------------------------------------------------------------------------------

    @admin.display(description="name", ordering="name")
    def shown_name(self, job: Job) -> SafeString | str:
        """Return the name; for a rebuild, as a link to the rebuilds of the projection."""
        return (
            link(list_url("rebuild", q=job.name), job.name)
            if job.kind == "rebuild" and has_pages("rebuild")
            else job.name
        )

    @admin.display(description="state", ordering="state")
    def shown_state(self, job: Job) -> SafeString:
        return _live(job, "state")

    @admin.display(description="progress")
    def shown_progress(self, job: Job) -> SafeString:
        return _live(job, "progress")

    @admin.display(description="duration")
    def shown_duration(self, job: Job) -> SafeString:
        return _live(job, "duration")

    @admin.display(description="figures")
    def shown_figures(self, job: Job) -> SafeString | str:
        return _table(figures_of(job))

    @admin.display(description="figures")
    def some_figures(self, job: Job) -> SafeString | str:
        """Return the figures for users who may not view payloads."""
        return _table(figures_of(job, instead_of_quotes=HIDDEN))

    @admin.display(description="once more")
    def starting_again(self, job: Job) -> SafeString:
        url = reverse("admin:enode_django_job_start", args=[job.kind], query={"name": job.name})
        return link(url, "Start it again")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        from enode_django.admin.job_operations import STARTS  # see the package

        starts = [(kind, form.title) for kind, form in STARTS.items() if request.user.has_perms(form.permissions)]
        newest = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        context = {**(extra_context or {}), "starts": starts, "newest": newest}
        return super().changelist_view(request, context)

    def progress(self, request: HttpRequest) -> HttpResponse:
        """Return the progress of the jobs in ``ids`` as JSON, and the number of jobs newer than the id ``newest``, 0
        without it. Ids beyond `MOST_WATCHED` are ignored."""
        ids = _numbers(request.GET.get("ids", ""))
        (newest, *_) = [*_numbers(request.GET.get("newest", "")), 0]
        found = self.get_queryset(request).filter(pk__in=ids)
        newer = Job.objects.filter(pk__gt=newest).count() if newest else 0
        return JsonResponse({"jobs": {job.pk: _told(job) for job in found}, "newer": newer})

    # -- actions --------------------------------------------------------------------------------------------------

    def start(self, request: HttpRequest, kind: str) -> HttpResponse:
        from enode_django.admin.job_operations import STARTS  # see the package

        if kind not in STARTS:
            raise Http404(f"there is no kind {kind!r} of jobs")
        if not request.user.has_perms(STARTS[kind].permissions):
            raise PermissionDenied
        again = STARTS[kind].for_name(request.GET.get("name", ""))
        return start(self, request, STARTS[kind], Job(), crumbs=[(reverse(LIST), "Jobs")], initial=again)

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        for job in chosen.filter(state=JobState.RUNNING):
            try:
                request_cancel(job.pk)
            except EnodeError as error:  # it has ended meanwhile
                self.message_user(request, str(error), messages.WARNING)
                continue
            self.done(request, job, "cancel", f"{job.kind} of {job.name} was asked to stop")
            self.message_user(request, f"job {job.pk} ({job.kind} of {job.name}) was asked to stop", messages.SUCCESS)


def start(
    admin: Any, request: HttpRequest, form: type[JobOperation], target: Model, *, crumbs: Any, initial: Any = None
) -> HttpResponse:
    """Show the pages of an operation that starts a job, and redirect to the jobs of its task. ``target`` gets the
    operation in its history."""

    def log(operation: JobOperation, done: str) -> None:
        LogEntry.objects.create(
            user_id=request.user.pk or 0,
            content_type=ContentType.objects.get_for_model(target),
            object_id=target.pk,
            object_repr=f"{operation.kind} of {operation.name()}"[:200],
            action_flag=CHANGE if target.pk else ADDITION,
            change_message=done,
        )
        log_failure(operation, done)

    def log_failure(operation: JobOperation, details: str) -> None:
        audit(request, target, f"start {operation.kind}", details, object_id=operation.name())

    return operate(
        admin,
        request,
        lambda data: form(data, initial=initial),
        log=log,
        log_failure=log_failure,
        back=lambda operation: reverse(LIST, query={"q": operation.task_id} if operation.task_id else None),
        crumbs=crumbs,
    )


def _table(figures: Iterable[tuple[str, str]]) -> SafeString | str:
    lines = [(label, preformatted(text)) for label, text in figures]
    rows = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', lines)
    return format_html('<table class="enode-figures"><tbody>{}</tbody></table>', rows) if lines else "-"


def _told(job: Job) -> dict[str, Any]:
    return {
        "state": state_of(job),
        "progress": progress_of(job) or _error_type(job) or "-",
        "duration": duration_of(job),
        "running": job.state == JobState.RUNNING,
    }


def _error_type(job: Job) -> str:
    """Return the type of the error without its text, which may quote events."""
    return type_of_error(message_of(job.error).partition("\n")[0]) if job.error else ""


def _live(job: Job, what: str) -> SafeString:
    """Return a text that ``jobs.js`` updates while the job runs."""
    told = _told(job)
    if not told["running"]:
        return format_html("{}", told[what])
    url = reverse("admin:enode_django_job_progress")
    return format_html('<span data-job="{}" data-what="{}" data-url="{}">{}</span>', job.pk, what, url, told[what])


def _numbers(text: str) -> list[int]:
    parts = text.split(",")[:MOST_WATCHED]
    return [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 19]
