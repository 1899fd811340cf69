"""``python -m tests.jobs.holder KIND NAME LEASE``: a process that holds a job until its input ends or it must stop."""

from __future__ import annotations

import sys
import threading
import time

import django

HELD, STOPPED = "held", "stopped"
TAKES_SO_LONG = 0.01


def main(kind: str, name: str, lease: str) -> None:
    django.setup()
    from enode_django.exceptions import JobError
    from enode_django.jobs.running import running_job

    may_end = threading.Event()
    threading.Thread(target=lambda: may_end.set() if sys.stdin.read() == "" else None, daemon=True).start()
    try:
        with running_job(kind, name, lease=float(lease)) as job:
            job.on_stop(lambda: print(STOPPED, flush=True))
            print(HELD, flush=True)
            step = 0
            while not may_end.is_set():
                job.report("stepping", step=(step := step + 1))
                time.sleep(TAKES_SO_LONG)
            job.result(steps=step)
    except JobError as error:
        print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
