from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chaos.checker.facts import Facts, TableRow
from chaos.checker.replay.read_models import COLUMNS, expected_rows


def read_models(facts: Facts) -> Iterator[str]:
    """The tables of the projections hold the rows that a replay of the stored events makes."""
    for table, rows in facts.tables.items():
        keys = 2 if table == "bank_ledgerentry" else 1
        yield from _differences(table, keys, rows, {row[:keys]: row for row in expected_rows(facts.replay, table)})


def _differences(
    table: str, keys: int, rows: Sequence[TableRow], expected: dict[tuple[Any, ...], TableRow]
) -> Iterator[str]:
    """Yield the differences. The first ``keys`` columns identify a row. Removes the rows found from ``expected``."""
    for row in rows:
        replayed = expected.pop(row[:keys], None)
        if replayed is None:
            yield f"{table} has {row}, which a replay does not make, or makes once only"
        elif replayed != row:
            wrong = [
                f"{name} is {found!r}, a replay makes {made!r}"
                for name, found, made in zip(COLUMNS[table], row, replayed, strict=True)
                if found != made
            ]
            yield f"{table} {' '.join(map(str, row[:keys]))}: {'; '.join(wrong)}"
    for row in expected.values():
        yield f"{table} lacks {row}"
