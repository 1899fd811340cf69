"""The number of cores that this process may use by its affinity and cgroup."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of usable cores, at least 1. ``cgroup_limit`` is a file of cgroup v2: quota and period in
    microseconds, or ``max``."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup_limit.read_text().split()
        if quota != "max":
            return max(1, min(affinity, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return affinity
