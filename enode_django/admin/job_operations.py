"""Forms that start batch jobs, one for each kind. They send a Celery task."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from django import forms
from django.utils.module_loading import import_string

from enode_django.admin.operating import Operation
from enode_django.admin.showing import VIEW_PAYLOAD
from enode_django.admin.stream_list import aggregate_names
from enode_django.batch import EVERYTHING
from enode_django.conf import conf
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.exceptions import ConfigurationError, JobRunning
from enode_django.jobs.leases import with_lease_state
from enode_django.models import Job, JobState


class JobOperation(Operation):
    """A form that starts a job. ``task`` is a name in `enode_django.tasks`. ``permissions`` are needed to start the
    job from the list of jobs. The value of the field ``named_by`` becomes the job's name. ``task_id`` is the id that
    Celery gave the task, empty before `perform`."""

    kind: ClassVar[str]
    named_by: ClassVar[str]
    task: ClassVar[str]
    permissions: ClassVar[Sequence[str]] = ("enode_django.add_job",)
    button = "Start the job"
    task_id = ""

    @classmethod
    def for_name(cls, name: str) -> Mapping[str, str]:
        """Return initial values for a form that starts a job with this `name`."""
        return {cls.named_by: "" if name == EVERYTHING else name}

    def name(self) -> str:
        """Return the job's name. Call this method and those below on a valid form only."""
        name: str = self.cleaned_data[self.named_by] or EVERYTHING
        return name

    @abstractmethod
    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the task."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the ``manage.py`` command that does the same, as arguments."""

    @abstractmethod
    def said(self) -> str:
        """Return what the job will do, as sentences."""

    def consequences(self) -> Iterator[str]:
        self._check()
        yield self.said()
        yield "A Celery worker does it. The list of jobs shows its progress."

    def perform(self) -> str:
        self._check()
        task = import_string(f"enode_django.tasks.{self.task}")
        try:
            self.task_id = task.apply_async(kwargs=dict(self.arguments()), retry=False, ignore_result=True).id
        except Exception as error:  # each broker's library raises errors of its own
            raise ConfigurationError(f"Celery's broker took no task: {error}; {self._instead()}") from error
        return f"{self.kind} of {self.name()}: Celery has the task {self.task_id}"

    def _check(self) -> None:
        if problem := celery_problem():
            raise ConfigurationError(f"{problem}; {self._instead()}")
        running = with_lease_state(Job.objects.filter(kind=self.kind, name=self.name(), state=JobState.RUNNING)).first()
        if running is not None and not running.is_left:  # a left one is taken over
            raise JobRunning(
                f"job {running.pk} works on that already; wait until it ends, or cancel it",
                job_id=running.pk,
                task_id=running.task_id,
            )

    def _instead(self) -> str:
        return f"run this instead: manage.py {shlex.join(self.command())}"


class StartSnapshots(JobOperation):
    title = "Make snapshots"
    kind, task, named_by = "snapshots", "build_snapshots", "type"

    type = forms.ChoiceField(label="Aggregates of type", required=False)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.let_choose("type", [("", "all types"), *((name, name) for name in aggregate_names())])

    def arguments(self) -> Mapping[str, Any]:
        return {"type": self.cleaned_data["type"] or None}

    def command(self) -> list[str]:
        chosen: str = self.cleaned_data["type"]
        return ["enode", "buildsnapshots", *(["--type", chosen] if chosen else [])]

    def said(self) -> str:
        return f"Snapshots of {self.cleaned_data['type'] or 'all'} aggregates are made where they are due."


class ProjectionOperation(JobOperation):
    kind, named_by = "rebuild", "projection"

    projection = forms.ChoiceField(label="Projection")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        projections = (one for one in subscribers.all() if isinstance(one, BaseProjection))
        self.let_choose("projection", [(key_of(one), one.name) for one in projections])

    def arguments(self) -> Mapping[str, Any]:
        return {"name": self.name()}


class StartRebuild(ProjectionOperation):
    title = "Rebuild a projection"
    task = "rebuild_projection"

    accept_differences = forms.BooleanField(
        label="Accept differences",
        required=False,
        help_text="Put the new tables into use even if their rows differ from the old ones.",
    )

    compare_only = forms.BooleanField(
        label="Compare only",
        required=False,
        help_text="Compare the new tables with those in use, and drop them.",
    )

    def arguments(self) -> Mapping[str, Any]:
        return {**super().arguments(), **self._options()}

    def command(self) -> list[str]:
        options = [f"--{name.replace('_', '-')}" for name, is_wanted in self._options().items() if is_wanted]
        return ["rebuildprojection", self.name(), *options]

    def said(self) -> str:
        accepts, compares = self._options().values()
        begin = f"New tables of {self.name()} are built beside those in use, and"
        if compares:
            otherwise = "" if accepts else " The job fails if a row differs."
            return f"{begin} dropped when they have been compared.{otherwise}"
        return f"{begin} replace them {'in any case' if accepts else 'if no row differs'}."

    def _options(self) -> dict[str, bool]:
        return {name: self.cleaned_data[name] for name in ("accept_differences", "compare_only")}


class UndoRebuild(ProjectionOperation):
    title, button = "Undo a rebuild", "Put the tables back"
    task = "undo_rebuild"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        name = self.initial["projection"]
        self.let_choose("projection", [(name, name)])

    def command(self) -> list[str]:
        return ["rebuildprojection", self.name(), "--undo"]

    def said(self) -> str:
        return f"The tables of {self.name()} that the last rebuild replaced are brought up to date and put back."


_DIRECTORIES = "ENODE['JOBS']['EXPORT_DIRECTORIES']"


class StartExport(JobOperation):
    """Start an export. Only directories in the settings are offered: a typed path could be any file of the workers."""

    title = "Export events"
    kind, task, named_by = "export", "export_events", "path"
    permissions = ("enode_django.add_job", VIEW_PAYLOAD)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "json": "From this run on, events are stored as JSON, too.",
        "compact": "All its increments are merged into one.",
    }
    """The sentence on the confirmation page for each chosen option."""

    path = forms.ChoiceField(
        label="To",
        help_text=f"A directory of the workers, or a URI that Spark can write to, from {_DIRECTORIES}.",
        error_messages={"invalid_choice": f"%(value)s may not be exported to: it is not in {_DIRECTORIES}."},
    )
    json = forms.BooleanField(
        label="JSON",
        required=False,
        help_text="Store the events as JSON, too, in this run and all later ones, for readers without this framework.",
    )
    compact = forms.BooleanField(
        label="Merge everything",
        required=False,
        help_text="Merge all increments into one. Without it, small increments are merged when there are many.",
    )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.let_choose("path", [(path, path) for path in conf().JOBS.EXPORT_DIRECTORIES])

    def clean(self) -> None:
        if not conf().JOBS.EXPORT_DIRECTORIES:
            raise forms.ValidationError(f"Nothing may be exported from here: {_DIRECTORIES} is empty. Add a directory.")

    def arguments(self) -> Mapping[str, Any]:
        return {"path": self.name(), **{option: self.cleaned_data[option] for option in self.OPTIONS}}

    def command(self) -> list[str]:
        return ["enode", "exportevents", self.name(), *(f"--{option}" for option in self._chosen())]

    def said(self) -> str:
        added = f"Everything stored since the last export is added to the archive at {self.name()}."
        return " ".join([added, *(self.OPTIONS[option] for option in self._chosen())])

    def _chosen(self) -> list[str]:
        return [option for option in self.OPTIONS if self.cleaned_data[option]]


STARTS: Mapping[str, type[JobOperation]] = {
    "snapshots": StartSnapshots,
    "rebuild": StartRebuild,
    "export": StartExport,
}


def celery_problem() -> str:
    """Return the reason why this process can send no task; empty if it knows none."""
    if find_spec("celery") is None:
        return 'Celery is not installed; install it: pip install "enode_django[celery]"'
    can_be_sent = import_string("enode_django.tasks.can_be_sent")
    return "" if can_be_sent() else "the project has no Celery app with a broker"
