"""A process is killed between storing events and following them."""

from __future__ import annotations

import os
import signal
from urllib.parse import urlsplit

from django.db import connection

from enode_django import send_command
from enode_django.models import EventStream
from tests import warm
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarEntries, JarEntry, JarRow, JarRows, mails
from tests.meta.tree import ROOT


def test_what_a_killed_process_has_stored_is_followed_by_the_next_one(
    new_process: NewProcess, behaviour: Behaviour, postgres_url: str
) -> None:
    url = urlsplit(postgres_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    command = ["-m", "tests.immediate.dying", "mails", "a"]
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    done = warm.run(command, cwd=ROOT, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert EventStream.objects.get().version == 1
    assert JarEntry.objects.count() == 1, "entries come before mails"
    assert JarRow.objects.count() == 0
    new_process(JarEntries, JarRows, mails("beginning"))
    send_command(Fill("b"))
    assert {*JarRow.objects.values_list("pk", "total")} == {("a", 1), ("b", 1)}
    assert JarEntry.objects.count() == 2
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "b", 1)]
