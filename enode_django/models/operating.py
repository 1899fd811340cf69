"""The tables of jobs and processors, and models without a table for pages of the admin."""

from __future__ import annotations

from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Now


class JobState(models.TextChoices):
    """The state of a `Job`. All but the first are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(models.Model):
    """One run of a batch job. While it is running, its row is the lease of ``owner`` until ``lease_until``, by the
    clock of the database.

    `enode_django.jobs.running` writes the rows. They may be deleted when the job has ended.
    """

    kind = models.CharField("kind", max_length=50)
    name = models.CharField("name", max_length=500, help_text="What it works on: one at a time of each kind.")
    state = models.CharField("state", max_length=20, choices=JobState.choices, default=JobState.RUNNING)
    progress = models.JSONField("progress", default=dict, encoder=DjangoJSONEncoder)
    figures = models.JSONField("figures", default=dict, encoder=DjangoJSONEncoder)
    error = models.TextField("error", default="", blank=True, help_text="With its traceback.")
    owner = models.UUIDField("owner", help_text="Of this run alone: a row that has another one was taken over.")
    lease_until = models.DateTimeField("lease until")
    cancel_requested_at = models.DateTimeField("cancel requested at", null=True, blank=True)
    task_id = models.CharField("task id", max_length=255, default="", blank=True, help_text="Celery's, if one runs it.")
    started_at = models.DateTimeField("started at")
    finished_at = models.DateTimeField("finished at", null=True, blank=True)

    class Meta:
        verbose_name = "job"
        verbose_name_plural = "jobs"
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "name"], name="enode_job_running", condition=models.Q(state=JobState.RUNNING)
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk}: {self.kind} {self.name} ({self.state})"


class ProcessorReport(models.Model):
    """The figures of one ``runprocessors`` and its workers at one moment, counted since their start.

    The supervisor writes a row every few seconds; any supervisor deletes old rows. ``docs/reference/metrics.md``
    explains the ``figures``. Except for gauges they only grow, so the difference of two rows of one ``supervisor`` is
    what happened in between. The name of a supervisor changes with each start.
    """

    supervisor = models.CharField("supervisor", max_length=255, db_collation="C")
    host = models.CharField("host", max_length=255)
    pid = models.IntegerField("process id")
    started_at = models.DateTimeField("started at")
    reported_at = models.DateTimeField("reported at", db_default=Now(), help_text="By the clock of the database.")
    ended = models.BooleanField("ended", db_default=False, help_text="The last report: it was stopped.")
    figures = models.JSONField("figures")

    class Meta:
        verbose_name = "processor report"
        verbose_name_plural = "dashboard"  # their page in the admin
        default_permissions = ("view",)
        indexes = [models.Index(fields=["reported_at"], name="enode_processor_reported_at")]

    def __str__(self) -> str:
        return f"{self.supervisor} at {self.reported_at}"


class OperatorAction(models.Model):
    """One thing that an operator did in the admin or by a management command. `enode_django.operating.actions` writes
    the rows, and nothing deletes them."""

    class Source(models.TextChoices):
        ADMIN = "admin"
        COMMAND = "command"

    happened_at = models.DateTimeField("time", db_default=Now())
    operator = models.CharField(
        "operator", max_length=300, help_text="A user of the admin, or user@host of a management command."
    )
    source = models.CharField("source", max_length=20, choices=Source.choices)
    action = models.CharField("action", max_length=100)
    object_type = models.CharField("type of object", max_length=100)
    object_id = models.CharField("object", max_length=500, db_collation="C")
    row = models.CharField("primary key of its row", max_length=100, default="", blank=True)
    details = models.TextField("details", default="", blank=True)
    reason = models.TextField("reason", default="", blank=True)

    class Meta:
        verbose_name = "operator action"
        verbose_name_plural = "operator actions"
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["object_type", "object_id"], name="enode_action_object"),
            models.Index(fields=["object_type", "row"], name="enode_action_row"),
        ]

    def __str__(self) -> str:
        return f"{self.action} of {self.object_id} by {self.operator}"


class NoRows(models.Manager[Any]):
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


class WithoutTable(models.Model):
    """The base of models that exist for their pages and permissions in the admin. They have no table and no rows, so
    ``dumpdata`` passes over them."""

    objects = NoRows()

    class Meta:
        abstract = True
        base_manager_name = "objects"  # of ``dumpdata --all``


class Topic(WithoutTable):
    """A topic of the queue."""

    name = models.CharField("name", max_length=255, primary_key=True)

    class Meta:
        verbose_name = "topic"
        verbose_name_plural = "topics and queues"
        default_permissions = ("view", "change")
        managed = False

    def __str__(self) -> str:
        return self.name


class Subscriber(WithoutTable):
    """A projection, process manager or event handler group."""

    name = models.CharField("name", max_length=255, primary_key=True)

    class Meta:
        verbose_name = "subscriber"
        verbose_name_plural = "subscribers"
        default_permissions = ("view",)
        managed = False

    def __str__(self) -> str:
        return self.name
