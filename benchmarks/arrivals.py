"""A sender whose commands arrive by a schedule: ``python -m benchmarks.arrivals ACCOUNT…``.

It answers each line ``RATE SECONDS SEED`` when it has encoded that many deposits; the next line, a time of
`time.perf_counter`, which processes share, begins them. They arrive at random times (exponential gaps), whether or not
earlier ones are handled. The answer says how many were sent, and how late the latest one was.
"""

from __future__ import annotations

import json
import random
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence

SHORTEST_WAIT = 0.001
"""In seconds. Messages that become due meanwhile are sent in one batch, as a busy web process sends them."""


def arrival_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Return random times within ``seconds``, ``rate`` of them a second on average."""
    gap, times, time_of_next = random.Random(seed).expovariate, [], 0.0
    while (time_of_next := time_of_next + gap(rate)) < seconds:
        times.append(time_of_next)
    return times


def main(accounts: Sequence[str]) -> None:
    import django

    django.setup()
    from benchmarks import loads
    from enode_django.conf import conf
    from enode_django.runtime import make_producer, make_transport

    producer, topic = make_producer(make_transport()), conf().COMMANDS.TOPIC
    for line in sys.stdin:
        rate, seconds, seed = line.split()
        times = arrival_times(float(rate), float(seconds), int(seed))
        messages = loads.deposits(accounts, len(times), int(seed))
        print(json.dumps(len(times)), flush=True)
        began, sent, late = float(sys.stdin.readline()), 0, 0.0
        while sent < len(times):
            now = time.perf_counter() - began
            due = bisect_right(times, now, sent)
            if due > sent:
                late = max(late, now - times[sent])
                producer.send_batch(topic, messages[sent:due])
                sent = due
            else:
                time.sleep(max(SHORTEST_WAIT, times[sent] - now))
        print(json.dumps({"sent": sent, "late": late}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
