"""``manage.py enode jobs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.jobs.error_texts import in_one_line
from enode_django.jobs.leases import job_database, request_cancel, with_lease_state
from enode_django.jobs.texts import duration_of, figures_of, progress_of, state_of
from enode_django.management.arguments import above_0
from enode_django.management.auditing import add_reason, audited
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand
from enode_django.management.tables import write_table
from enode_django.models import Job


class Command(PrintableCommand):
    help = "Lists the batch jobs, the newest first, shows one with its whole error, or asks one to stop."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="show the newest jobs")
        listing.add_argument("--limit", type=above_0, default=20, help="at most so many (20)")
        listing.add_argument("--running", action="store_true", help="only running jobs")
        showing = actions.add_parser("show", help="show a job with its whole error")
        showing.add_argument("id", type=int, help="the id in the list")
        cancelling = actions.add_parser("cancel", help="ask a job to stop")
        cancelling.add_argument("id", type=int, help="the id in the list")
        add_reason(cancelling)

    def handle(self, *, action: str, **options: Any) -> None:
        with errors_shown():
            if action == "list":
                self._list(options["limit"], options["running"])
            elif action == "show":
                self._show(options["id"])
            else:
                with audited("cancel", Job._meta.label_lower, str(options["id"]), reason=options["reason"]):
                    request_cancel(options["id"])
                self.stdout.write(f"job {options['id']} was asked to stop; manage.py enode jobs list shows its state")

    def _list(self, limit: int, only_running: bool) -> None:
        jobs = with_lease_state(Job.objects.using(job_database()).order_by("-pk"))
        if only_running:
            jobs = jobs.filter(state="running")
        rows = [_shown(job) for job in jobs[:limit]]
        write_table(self.stdout, rows)
        self.stdout.write(f"{len(rows)} jobs")

    def _show(self, id: int) -> None:
        job: Any = with_lease_state(Job.objects.using(job_database()).filter(pk=id)).first()
        if job is None:
            raise CommandError(f"there is no job {id}; manage.py enode jobs list shows the jobs")
        for name, value in _details(job):
            if value:
                self.stdout.write(f"{name}: {value}")
        if job.error:
            self.stdout.write(f"\n{job.error.strip()}")


def _details(job: Any) -> Iterator[tuple[str, str]]:
    yield from _shown(job).items()
    yield "finished", "" if job.finished_at is None else job.finished_at.isoformat(" ", "seconds")
    yield from ((label, text.replace("\n", ", ")) for label, text in figures_of(job))


def _shown(job: Any) -> Mapping[str, str]:
    return {
        "id": str(job.pk),
        "kind": job.kind,
        "name": job.name,
        "state": state_of(job),
        "started": job.started_at.isoformat(" ", "seconds"),
        "lasts": duration_of(job),
        "progress": (in_one_line(job.error) or progress_of(job))[:100],
    }
