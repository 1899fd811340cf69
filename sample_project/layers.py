"""Layered settings: those of a run, a benchmark or a test over the sample's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dictionaries such as ``ENODE``, group by group and key by key; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = result.get(key)
            result[key] = {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result
