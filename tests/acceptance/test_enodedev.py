"""Web, processors and broker in one command: the log follows a request, edited code is in force, and all ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from enode_django.conf.groups import BROKER
from enode_django.ids import new_id
from sample_project.embedded_process import free_port
from tests import warm
from tests.acceptance.processors import PROJECT, Group, is_running
from tests.acceptance.stack import Stack
from tests.acceptance.test_reloading import HANDLER
from tests.acceptance.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

APP = "developed_app"
URLS = """
from decimal import Decimal
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from enode_django import WaitFor, execute_command
from sample_project.bank.domain import OpenAccount
from tests.acceptance.newer.commands import PayInterest

@csrf_exempt
def execute(request, account, id):
    command = OpenAccount(aggregate_root_id=account, owner="x", id=id)
    if request.method == "POST":
        command = PayInterest(aggregate_root_id=account, amount=Decimal(1), id=id)
    result = execute_command(command, wait_for=WaitFor.HANDLED, timeout=240)
    return HttpResponse(f"{result.value} {result.version}")

urlpatterns = [path("<account>/<id>/", execute)]
"""


SETTINGS = f"""
from tests.acceptance.settings import *

ROOT_URLCONF = "{APP}.urls"
DEBUG = True
"""


class Development(Group):
    """An `enodedev` with an app of its own, whose view sends a command."""

    def __init__(self, stack: Stack, directory: Path, grace: float) -> None:
        self.app = directory / APP
        self.app.mkdir()
        (self.app / "__init__.py").touch()
        (self.app / "urls.py").write_text(URLS)
        self._saved = 1_000_000_000
        self.edit("first")
        self.web, queue = free_port(), f"tcp://127.0.0.1:{free_port()}"
        enode: dict[str, Any] = {"QUEUE": {"BACKEND": BROKER, "LOCATION": queue, "OPTIONS": {}}}
        enode["WORKERS"] = {"GRACE": grace}
        enode["BROKER"] = {"LISTEN": queue, "DIRECTORY": str(directory / "broker")}
        settings = directory / "developed_settings.py"
        settings.write_text(SETTINGS)
        path = os.pathsep.join([str(directory), str(PROJECT)])
        environment = {**stack._environment(APP, "", enode), "PYTHONPATH": path}
        self.log_path = directory / "enodedev.log"
        with self.log_path.open("wb") as output:
            self._process = warm.start(
                [PROJECT / "manage.py", "enodedev", str(self.web)],
                cwd=stack.directory,  # by which the guard of that directory finds them
                env={**os.environ, **environment, "DJANGO_SETTINGS_MODULE": "developed_settings"},
                stdout=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def edit(self, edition: str) -> None:
        module = self.app / "command_handlers.py"
        module.write_text(HANDLER.format(edition=edition))
        self._saved += 10
        os.utime(module, (self._saved, self._saved))

    def ask(self, account: str, method: str = "POST") -> str:
        """The body of an answer, to a command that is sent until it is answered: web and workers may be starting."""
        answers: list[str] = []
        id = new_id()

        def is_answered() -> bool:
            url = f"http://127.0.0.1:{self.web}/{account}/{id}/"
            request = urllib.request.Request(url, method=method, headers={"X-Request-ID": f"request-{id[-8:]}"})
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                urllib.request.urlopen(request, timeout=65) as response,
            ):
                answers.append(response.read().decode())
            return any(answers)  # one that a reload of the web has cut off is empty

        wait_until(is_answered, f"an answer to {id}")
        return answers[-1]

    def descendants(self) -> list[int]:
        return [process.pid for process in psutil.Process(self.pid).children(recursive=True)]

    def close(self) -> None:
        found = [*self.descendants(), self.pid] if self.is_running else []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


@pytest.fixture
def start(stack: Stack, tmp_path: Path) -> Iterator[Callable[..., Development]]:
    with contextlib.ExitStack() as started:

        def begin(grace: float = PATIENCE) -> Development:
            development = Development(stack, tmp_path, grace)
            started.callback(lambda: print(development.log))
            started.callback(development.close)
            return development

        yield begin


def wait_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)), f"the end of {pids}")


def still_running(stack: Stack) -> list[str]:
    """Return the names of the processors that have reported, and not that they have ended."""
    newest = "SELECT DISTINCT ON (supervisor) supervisor, ended FROM enode_django_processorreport"
    rows = stack.query(f"SELECT supervisor FROM ({newest} ORDER BY supervisor, id DESC) AS newest WHERE NOT ended")
    return [name for (name,) in rows]


def test_a_request_is_followed_to_its_row_edited_code_is_in_force_and_ctrl_c_ends_all(
    start: Callable[..., Development], stack: Stack
) -> None:
    development = start()
    account = new_id()
    assert development.ask(account, "GET") == "None 1"
    assert development.ask(account) == "first 2"
    for step in ("command", "commit", "projection"):
        development.wait_for(rf"{step} .*{account[-16:]} +v2 ")
    lines = [line for line in development.log.splitlines() if account[-16:] in line and " v2 " in line]
    words = [line.split() for line in lines]
    assert {word[1] for word in words} >= {"command", "commit", "projection"}
    assert len({word[2] for word in words}) == 1, "one request"
    development.wait_for(rf"web +{words[0][2]} +POST /{account}/")
    assert re.search(rf"queue +{words[0][2]} +newer\.PayInterest", development.log)

    wait_until(lambda: still_running(stack), "the first report")
    development.edit("second")
    answers = ["first 2"]
    while not answers[-1].startswith("second"):
        answers.append(development.ask(account))
    assert [answer.split()[1] for answer in answers] == [str(2 + n) for n in range(len(answers))], "none is lost"

    # The broker, two for the web, two and two workers for the processors; one of these may be starting still.
    wait_until(lambda: len(development.descendants()) >= 7, "all are there")
    wait_until(lambda: len(still_running(stack)) == 1, "those that the reload has ended are not missed")
    everybody = development.descendants()
    development.signal(signal.SIGINT)
    assert development.wait_end() == 0
    wait_gone(everybody)
    assert still_running(stack) == []
    assert "Traceback" not in development.log


def test_all_end_with_the_parent_however_it_ends(start: Callable[..., Development]) -> None:
    development = start(grace=2.0)
    wait_until(lambda: len(development.descendants()) >= 5, "the broker, the web's and the processors'")
    everybody = development.descendants()
    development.signal(signal.SIGKILL)
    wait_gone(everybody)


@pytest.mark.django_db(transaction=True)
def test_migrations_that_are_not_applied_are_named() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("notes", "0001_initial")
    try:
        with pytest.raises(CommandError, match=r"'default', the first is notes\.0001_initial; run manage\.py"):
            call_command("enodedev", "0")
    finally:
        recorder.record_applied("notes", "0001_initial")
