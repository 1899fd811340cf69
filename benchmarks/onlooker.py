"""``python -m benchmarks.onlooker METRICS``: an observer of the processors, until its input ends. It scrapes the page
of metrics every second, and requests the dashboard's pages as often as a browser does."""

from __future__ import annotations

import json
import select
import sys
import time
import urllib.request
from collections.abc import Callable

import django

SCRAPE = 1.0
FIGURES, STATUS = 5.0, 15.0
DASHBOARD = "/admin/enode_django/processorreport/"


class Dashboard:
    """An open dashboard. The server's work is done in this process."""

    def __init__(self) -> None:
        from django.contrib.auth.models import User
        from django.test import Client

        self._client = Client(SERVER_NAME="localhost")
        self._client.force_login(User.objects.create_superuser("onlooker"))
        self._since = 0.0
        self._ask("")

    def look(self) -> None:
        self._since = json.loads(self._ask(f"figures/?since={self._since}"))["until"]

    def look_at_status(self) -> None:
        self._ask("status/")

    def _ask(self, page: str) -> bytes:
        answer = self._client.get(DASHBOARD + page)
        if answer.status_code != 200:
            raise SystemExit(f"{DASHBOARD}{page} answers {answer.status_code}")
        return answer.content


def main(metrics: str) -> None:
    django.setup()
    dashboard = Dashboard()

    def scrape() -> None:
        with urllib.request.urlopen(metrics, timeout=10) as page:
            page.read()

    chores: list[tuple[float, Callable[[], None]]] = [
        (SCRAPE, scrape),
        (FIGURES, dashboard.look),
        (STATUS, dashboard.look_at_status),
    ]
    due = [0.0] * len(chores)
    is_told = False
    while not select.select([sys.stdin], [], [], max(0.0, min(due) - time.monotonic()))[0]:
        for number, (interval, chore) in enumerate(chores):
            if due[number] <= time.monotonic():
                due[number] = time.monotonic() + interval
                chore()
        if not is_told:
            print(json.dumps("looking"), flush=True)
            is_told = True


if __name__ == "__main__":
    main(sys.argv[1])
