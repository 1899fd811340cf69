"""Files of one JSON object per line, flushed line by line by processes that may be killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chaos.checker.reading.problems import Problems


class Line(NamedTuple):
    place: str
    values: dict[str, Any]


def read_lines(path: Path, problems: Problems) -> Iterator[Line]:
    """Yield all whole lines. A last line without its end was torn when its writer was killed, and is ignored."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            place = f"{path.name} line {number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                problems.add(place, error)
                continue
            if isinstance(values, dict):
                yield Line(place, values)
            else:
                problems.add(place, f"no object but {values!r}")
