"""Draw ``docs/images/rooms.svg``: the layers of the package, as ``pyproject.toml`` has them.

    python -m tests.docs.rooms_picture

A room is a package or a module directly below ``enode_django``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tests.docs.pages import DOCS
from tests.meta.tree import ROOT

PICTURE = DOCS / "images" / "rooms.svg"
WIDTH, ROW, BOX, MARGIN = 880, 50, 36, 24

QUEUE = {"equeue"}
WRITE = {"commanding", "domain", "bus", "client", "serializers", "forms", "views", "web", "middleware"}
READ = {"eventing", "rebuilding", "spark", "history"}
STORE = {"eventstore", "repository", "models", "databases", "migrations", "fields", "operations", "routers"}

STYLE = """
    .ground { fill: #ffffff }
    .text { fill: #1f2933; font-size: 13px }
    .small { fill: #52606d; font-size: 12px }
    .box { fill: #f5f7fa; stroke: #7b8794; stroke-width: 1.25 }
    .write { fill: #e6f4ea; stroke: #2f855a; stroke-width: 1.25 }
    .read { fill: #f3e8fd; stroke: #805ad5; stroke-width: 1.25 }
    .store { fill: #e3f0fb; stroke: #2b6cb0; stroke-width: 1.25 }
    .queue { fill: #fdf3df; stroke: #b7791f; stroke-width: 1.25 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #12181f }
      .text { fill: #e4e7eb }
      .small { fill: #9aa5b1 }
      .box { fill: #1f2933; stroke: #7b8794 }
      .write { fill: #1c3a2a; stroke: #68d391 }
      .read { fill: #322659; stroke: #b794f4 }
      .store { fill: #14304a; stroke: #63b3ed }
      .queue { fill: #3a2d12; stroke: #ecc94b }
    }
"""


def layers() -> list[list[str]]:
    """Return the rooms of each layer, the highest layer first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    return [[room.strip() for room in row.split("|")] for row in contract["layers"]]


def kind_of(room: str) -> str:
    kinds = {"queue": QUEUE, "write": WRITE, "read": READ, "store": STORE}
    return next((kind for kind, rooms in kinds.items() if room in rooms), "box")


def drawn(rows: Sequence[Sequence[str]]) -> str:
    height = 2 * MARGIN + 28 + ROW * len(rows) + 24
    return "\n".join([*_head(height), *_legend(), *_boxes(rows), *_foot(height)]) + "\n"


def _head(height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description" font-family="ui-sans-serif, system-ui, sans-serif">'
    )
    yield '  <title id="title">The rooms of enode_django</title>'
    yield (
        '  <desc id="description">The packages and modules of enode_django in layers. A room imports rooms of lower '
        "layers only.</desc>"
    )
    yield f"  <style>{STYLE}  </style>"
    yield f'  <rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>'


def _legend() -> Iterator[str]:
    x = MARGIN
    for kind, text in (
        ("write", "write side"),
        ("read", "read side"),
        ("store", "store and tables"),
        ("queue", "queue"),
        ("box", "all else"),
    ):
        yield f'  <rect class="{kind}" x="{x}" y="{MARGIN - 6}" width="14" height="14" rx="3"/>'
        yield f'  <text class="small" x="{x + 20}" y="{MARGIN + 6}">{text}</text>'
        x += 150


def _boxes(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, rooms in enumerate(rows):
        y = MARGIN + 28 + number * ROW
        width = (WIDTH - 2 * MARGIN - 8 * (len(rooms) - 1)) / max(len(rooms), 3)
        x = MARGIN + (WIDTH - 2 * MARGIN - len(rooms) * width - 8 * (len(rooms) - 1)) / 2
        for room in rooms:
            yield f'  <rect class="{kind_of(room)}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="6"/>'
            yield (
                f'  <text class="text" x="{x + width / 2:.1f}" y="{y + 23}" text-anchor="middle">{escape(room)}</text>'
            )
            x += width + 8


def _foot(height: int) -> Iterator[str]:
    yield f'  <text class="small" x="{MARGIN}" y="{height - 18}">A room imports rooms of lower layers only.</text>'
    yield "</svg>"


def main(picture: Path = PICTURE) -> None:
    picture.write_text(drawn(layers()))


if __name__ == "__main__":
    main()
