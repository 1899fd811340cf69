"""What the long jobs do: count."""

from __future__ import annotations

import os
import time

from enode_django.jobs import RunningJob


def compute(job: RunningJob) -> None:
    """Its progress says which process works."""
    step = 0
    while True:
        job.report("counting", step=(step := step + 1), process=os.getpid())
        time.sleep(0.02)
