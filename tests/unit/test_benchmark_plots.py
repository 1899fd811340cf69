"""The plots of a benchmark run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks import figures, plots

RUN = [
    figures.median("raw COPY", [140_000.0, 150_000.0, 145_000.0], "rows/s"),
    figures.median("spread", [50_000.0, 61_000.0, 55_000.0], "commands/s"),
    *(
        figures.Figure(f"open loop, {share}% of the peak: {percentile}", share * factor, "ms")
        for share in (10, 50, 80)
        for percentile, factor in {"p50": 1.0, "p99": 2.0, "p99.9": 3.0}.items()
    ),
    figures.Figure("multi", 9.0, "events/s"),  # alone: no plot
]


def test_the_plots_of_a_run_show_its_figures_and_what_they_must_reach(tmp_path: Path) -> None:
    written = plots.write(RUN, tmp_path)
    assert [file.name for file in written] == ["write-side.svg", "open-loop.svg", "requirements.svg"]
    texts = {file.name: " ".join(ElementTree.parse(file).getroot().itertext()) for file in written}
    for text in ("raw COPY", "145,000", "spread", "55,000"):
        assert text in texts["write-side.svg"]
    assert "spread / raw COPY: 0.379 (≥ 0.3)" in texts["requirements.svg"]
    assert "p99.9" in texts["open-loop.svg"]


def test_a_plot_of_the_same_figures_is_the_same_file(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for directory in (first, again):
        directory.mkdir()
    assert [file.read_bytes() for file in plots.write(RUN, first)] == [
        file.read_bytes() for file in plots.write(RUN, again)
    ]


def test_how_far_a_figure_is_from_its_bar_counts_in_the_direction_of_the_bar(tmp_path: Path) -> None:
    results = figures.judged([*RUN, figures.Figure("execute_command p50", 2.0, "ms")])
    times = {row["name"]: plots.times_better(row) for row in results}
    assert times["execute_command p50, ms"] == 2.0
    assert round(times["spread / raw COPY"], 2) == 1.26
