"""Write rows to the console, as a table or as one JSON object a line."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from enode_django.exceptions import printable
from enode_django.management.output import PrintableOutput

Row = Mapping[str, Any]
"""Values by heading. In a table None is empty, and bytes are shortened."""

BODY_WIDTH = 60


def preview(body: bytes, width: int = BODY_WIDTH) -> str:
    """Return at most ``width`` printable characters for bytes.

    >>> preview(b"caf\\xc3\\xa9 \\xff\\n"), preview(b"x" * 9, 4)
    ('café \\\\xff\\\\n', 'xxx…')
    """
    text = printable(body[: width * 4].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(body) <= width * 4 else f"{text[: width - 1]}…"


def write_table(out: PrintableOutput, rows: Sequence[Row]) -> None:
    """Write all rows below the headings of the first one. All rows must have the same headings."""
    table = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        out.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def write_lines(out: PrintableOutput, rows: Iterable[Row]) -> None:
    """Write each row as it comes, below the headings, while somebody reads. Columns are as wide as their headings."""
    for number, row in enumerate(rows):
        lines = [list(row), list(map(_cell, row.values()))]
        for line in lines[0 if number == 0 else 1 :]:
            out.write("  ".join(cell.ljust(len(heading)) for heading, cell in zip(row, line, strict=True)).rstrip())
        out.flush()
        if not out.has_reader:
            return


def write_json(out: PrintableOutput, rows: Iterable[Row]) -> None:
    """Write each row as it comes, while somebody reads. Bytes that are not UTF-8 get the key ``<heading>_base64``."""
    for row in rows:
        out.write(json.dumps(dict(map(_plain, row.items())), default=str))
        out.flush()
        if not out.has_reader:
            return


def _plain(item: tuple[str, Any]) -> tuple[str, Any]:
    heading, value = item
    if not isinstance(value, bytes):
        return heading.replace(" ", "_"), value
    try:
        return heading, value.decode()
    except UnicodeDecodeError:
        return f"{heading}_base64", b64encode(value).decode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return preview(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value)))
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return f"{value:.1f}" if isinstance(value, float) else printable(str(value))
