"""The figures of a run as SVG files. A plot is drawn if at least two of its figures are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.figures import Figure, judged, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = TypeVar("Row")
Draw = Callable[[Sequence[Figure], "Axes"], None]

WIDTH, ROW, FRAME = 7.5, 0.32, 1.0
"""Inches: of a plot, of one of its bars, and of what is around them."""
COMPARED = ("peer", "raw COPY", "plain SQL", "one by one", "RabbitMQ", "DBOS", "eventsource")
OURS, THEIRS, MISSED = "#2f6f9f", "#a9a9a9", "#c0504d"
PERCENTILES = {"p50": "o", "p99": "s", "p99.9": "^"}


def write(figures: Sequence[Figure], directory: Path) -> list[Path]:
    """Write the plots for which ``figures`` are enough. Return their files."""
    values = {figure.name: figure for figure in figures}
    written = []
    for name, (title, draw, wanted) in PLOTS.items():
        found = [values[figure] for figure in wanted if figure in values]
        if len(found) > 1:
            written.append(_written(directory / f"{name}.svg", title, draw, found))
    if results := [row for row in judged(figures) if row["bar"]]:
        title = "figures beside what is required"
        written.append(_written(directory / "requirements.svg", title, _draw_requirements, results))
    return written


def _written(file: Path, title: str, draw: Callable[[Sequence[Row], Axes], None], rows: Sequence[Row]) -> Path:
    import matplotlib  # here, since each process of a test run imports this module and few draw
    from matplotlib.figure import Figure as Canvas

    # Text stays text, and two runs with the same figures make the same files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 9}):
        canvas = Canvas(figsize=(WIDTH, FRAME + ROW * max(len(rows), 6)), layout="constrained")
        axes = canvas.add_subplot()
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        draw(rows, axes)
        canvas.savefig(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file


def _draw_rates(found: Sequence[Figure], axes: Axes) -> None:
    """Draw a bar for each figure, with a line from the least of its rounds to the greatest."""
    figures = list(reversed(found))
    names = [figure.name for figure in figures]
    lows = [figure.value - min(figure.rounds, default=figure.value) for figure in figures]
    highs = [max(figure.rounds, default=figure.value) - figure.value for figure in figures]
    colours = [THEIRS if _is_compared(name) else OURS for name in names]
    bars = axes.barh(names, [figure.value for figure in figures], color=colours, xerr=[lows, highs], capsize=2)
    axes.bar_label(bars, [number(figure.value) for figure in figures], padding=2)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.margins(x=0.12)
    axes.set_xlabel(figures[0].unit)


def _is_compared(name: str) -> bool:
    """Return True for a figure that ours are compared with."""
    return any(
        word in name for word in ("peer", "raw COPY", "plain SQL", "one by one", "RabbitMQ", "DBOS", "eventsource")
    )


def _draw_percentiles(found: Sequence[Figure], axes: Axes) -> None:
    for percentile, marker in PERCENTILES.items():
        figures = [figure for figure in found if figure.name.endswith(f": {percentile}")]
        shares = [float(figure.name.split()[2].rstrip("%")) for figure in figures]
        axes.plot(shares, [figure.value for figure in figures], marker=marker, label=percentile)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("arriving commands, % of the peak")
    axes.set_ylabel("ms from the time of arrival to the answer")
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.legend()


def _draw_requirements(results: Sequence[Mapping[str, Any]], axes: Axes) -> None:
    """Draw how many times better than required each ratio is: a bar to the left of 1 is missed."""
    rows = list(reversed(results))
    times = [times_better(row) for row in rows]
    names = [f"{row['name']}: {row['ratio']:.3g} ({row['bar']})" for row in rows]
    colours = [OURS if row["verdict"] == "meets" else MISSED for row in rows]
    axes.barh(names, [each - 1 for each in times], left=1, color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("times better than required")


def times_better(row: Mapping[str, Any]) -> float:
    sign, _, number = row["bar"].partition(" ")
    ratio, required = float(row["ratio"]), float(number.replace(",", ""))
    return ratio / required if sign == "≥" else required / max(ratio, required / 1_000)


PLOTS: Mapping[str, tuple[str, Draw, Sequence[str]]] = {
    "write-side": (
        "commands handled, with their events stored and published",
        _draw_rates,
        [
            "raw COPY",
            "spread",
            "spread, Redis Streams",
            "one account",
            "peer best, spread",
            "peer best, one account",
            "eventsource-py, spread",
            "eventsource-py, one account",
            "peer defaults, spread",
            "peer defaults, one account",
        ],
    ),
    "read-side": (
        "events handled, with their rows committed",
        _draw_rates,
        [
            "projection: raw COPY",
            "projection",
            "projection, Redis Streams",
            "ledger",
            "multi",
            "batch peer projection",
            "ledger: one by one",
            "peer projection",
        ],
    ),
    "open-loop": (
        "execute_command while other commands arrive at random times",
        _draw_percentiles,
        [f"open loop, {share}% of the peak: {percentile}" for share in (10, 50, 80) for percentile in PERCENTILES],
    ),
    "transfers": (
        "transfers of money, each a process of nine commands",
        _draw_rates,
        ["transfers", "DBOS transfers"],
    ),
    "cores": ("spread by number of workers", _draw_rates, [f"workers: {number}" for number in (1, 2, 4, 8)]),
    "append": (
        "append of a batch of 1,000, by the size of the table",
        _draw_rates,
        [
            f"append{kind}, {size} table"
            for kind in (
                "",
                ", partitioned",
                " to old aggregates",
                " to old aggregates, partitioned",
                " with random ids",
            )
            for size in ("small", "large")
        ],
    ),
    "rebuild": (
        "rebuild of a projection from two million streams",
        _draw_rates,
        ["rebuild: plain SQL", "rebuild in processes", "rebuild", "rebuild with Spark's start"],
    ),
}
