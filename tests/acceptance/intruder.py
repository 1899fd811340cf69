"""Follows all queues of the events topic without asking anybody for a lease, for all subscribers: run by itself.

A worker that was thought dead, or one that somebody started with other queues in mind, does no worse. With an argument
it ends before that offset of each queue.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import django

WAIT = 0.05


def main() -> None:
    django.setup()
    from enode_django.eventing.registry import subscribers

    end = float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
    threads = [threading.Thread(target=follow, args=(subscriber, end)) for subscriber in subscribers.all()]
    for thread in threads:
        thread.start()


def follow(subscriber: Any, end: float) -> None:
    from enode_django.conf import conf
    from enode_django.equeue.consumer.queue_consumer import PulledMessages
    from enode_django.equeue.offsets import OffsetWindow
    from enode_django.runtime import make_store, make_subscription, make_transport

    transport, topic = make_transport(), conf().SUBSCRIBERS.TOPIC
    subscription = make_subscription(subscriber, transport, make_store())
    windows = {
        queue: OffsetWindow(topic, queue, epoch=0, committed=0, deadline=time.monotonic())
        for queue in range(transport.queue_count(topic))
    }
    while True:
        offsets = {queue: window.next_offset for queue, window in windows.items() if window.next_offset < end}
        pulled = []
        for batch in transport.pull(topic, offsets, limit=random.randint(1, 200), wait=WAIT):
            window = windows[batch.queue]
            taken = [offset for offset in batch.offsets if offset < end]
            window.add(taken)
            pulled.append(PulledMessages(window, taken, list(batch.bodies[: len(taken)])))
        subscription.retry_due()
        subscription.handle(pulled)
        if not offsets:
            time.sleep(WAIT)
        print(f"{subscriber.name} handled {subscription.handled} and parked {subscription.parked}", flush=True)


if __name__ == "__main__":
    main()
