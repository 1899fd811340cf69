"""JSON that people write, parsed as strictly as RFC 8259 advises: unique keys, and no NaN."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from enode_django.exceptions import shown


def strict_json(text: str | bytes) -> Any:
    """Parse a JSON text. Raises `ValueError`, also for a key that is there twice, NaN and the infinities, and
    `RecursionError`.

    >>> strict_json('{"amount": "5"}')
    {'amount': '5'}
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {shown(twice)} is there twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
