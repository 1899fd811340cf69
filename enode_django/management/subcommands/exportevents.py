"""``manage.py enode exportevents``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from enode_django.management.auditing import add_reason, audited
from enode_django.management.on_spark import Lines, add_master, job_on_spark
from enode_django.management.output import PrintableCommand


class Command(PrintableCommand):
    help = "Adds the new rows of the event store to an archive of Parquet files."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", metavar="PATH", help="a directory, or a URI that Spark can write to")
        parser.add_argument("--anew", action="store_true", help="begin another archive beside the existing one")
        parser.add_argument("--json", action="store_true", help="store events as JSON, too, from now on")
        parser.add_argument("--compact", action="store_true", help="merge all files into few sorted ones")
        add_reason(parser)
        add_master(parser)

    def handle(self, *, path: str, anew: bool, json: bool, compact: bool, master: str | None, **options: Any) -> None:
        trail = audited("export", "archive", path, reason=options["reason"])
        with trail as details, job_on_spark("export", path, master) as (spark, job):
            from enode_django.spark.archive import export_events

            figures = export_events(spark, path, Lines(self.stdout, job.report), anew=anew, json=json, compact=compact)
            job.result(**figures)
            details.append(f"{figures['rows']} rows were added to {figures['history']}")
        rows, refusals = figures["rows"], figures["refusals"]
        self.stdout.write(f"{rows - refusals} event streams and {refusals} refusals added to {figures['history']}")
        if figures["merged"]:
            self.stdout.write(f"{figures['merged']} increments were merged into one; there are {figures['increments']}")
