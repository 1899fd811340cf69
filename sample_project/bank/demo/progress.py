"""The progress bars of the demo, and the table at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from sample_project.bank.demo.figures import Figures, Transfers, percentile
from sample_project.bank.demo.quiet import Pace
from sample_project.bank.demo.teller import Answer, Teller

LABEL_WIDTH = 21


def progress_on(console: Console) -> Progress:
    return Progress(
        TextColumn(f"{{task.description:<{LABEL_WIDTH}}}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        console=console,
    )


class Result(NamedTuple):
    """The result of the demo. ``report`` is that of runprocessors, empty if the demo did not start it."""

    figures: Figures
    transfers: Transfers
    sent_twice: int
    teller: Teller
    paces: Mapping[str, Pace]
    report: dict[str, Any]


def result_table(result: Result) -> Table:
    figures, teller = result.figures, result.teller
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=LABEL_WIDTH)
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(
        "throughput", f"{figures.per_second:,.0f}/s", f"{figures.stored:,} commands in {figures.seconds:.1f} s"
    )
    table.add_row("latency, idle", *_latency(teller.idle, "one at a time"))
    table.add_row("latency, loaded", *_latency(teller.busy, "behind a full queue"))
    table.add_row(
        "batch", f"{figures.median_batch:,.0f}", f"rows in one transaction (median), at most {figures.largest_batch:,}"
    )
    table.add_row("refused", f"{figures.refused:,}", "overdrafts; the refusals are stored, too")
    table.add_row("repeated", f"{result.sent_twice:,}", "sent twice, stored once")
    table.add_row("conflicts", *_conflicts(result.report))
    table.add_row(
        "transfers",
        f"{result.transfers.completed:,}",
        f"completed, and {result.transfers.cancelled:,} cancelled for want of money or of an account",
    )
    for name, pace in result.paces.items():
        table.add_row(name, f"{pace.per_second:,.0f}/s", f"{pace.streams:,} streams followed in {pace.seconds:.1f} s")
    return table


def _latency(answers: Sequence[Answer], surroundings: str) -> tuple[str, str]:
    if not answers:
        return "?", "nothing was measured"
    seconds = [answer.seconds for answer in answers]
    return _duration(percentile(seconds, 50)), f"p50, and p99 {_duration(percentile(seconds, 99))}: {surroundings}"


def _conflicts(report: dict[str, Any]) -> tuple[str, str]:
    if "conflicts" not in report:
        return "?", "counted by the processors that run already"
    return f"{report['conflicts']:,}", "versions that two workers wanted"


def _duration(seconds: float) -> str:
    """
    >>> _duration(0.0042), _duration(1.5)
    ('4.2 ms', '1.5 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s"
