"""The kinds of faults, one class each, in the registry `KINDS` by name."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.faults import connections, disks, failovers, jobs, messages, processes, room, routes, servers, turned
from chaos.faults.base import Fault, Skipped

__all__ = ["KINDS", "Fault", "Skipped", "switched_on"]

MODULES = (processes, servers, connections, turned, messages, jobs, failovers, disks, room, routes)
KINDS: dict[str, type[Fault]] = {kind.name: kind for module in MODULES for kind in module.KINDS}
ALL = "all"


def switched_on(more: Iterable[str] = (), less: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of the kinds that a run uses: all without ``less``, plus ``more``. "all" means all."""
    return frozenset((KINDS.keys() - _named(less)) | _named(more))


def _named(names: Iterable[str]) -> set[str]:
    return set(KINDS) if ALL in names else set(names)
