"""Settings in layers: what a run, a benchmark or a test says beside the sample's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return dictionaries such as ``ENODE`` laid over each other, group by group and key by key; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = result.get(key)
            result[key] = {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result
