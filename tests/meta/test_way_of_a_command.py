"""The figures of ``tests/way_of_a_command.py``, which the pages name."""

from __future__ import annotations

import os
import re

from sample_project.embedded import Broker
from tests import warm
from tests.meta.tree import ROOT
from tests.template import migrated, new_database

MOST_FILES, MOST_CHANGES = 30, 20


def test_few_files_and_rooms_pass_a_command_on_to_its_row(postgres_url: str, private_broker: Broker) -> None:
    with new_database(postgres_url, migrated(postgres_url)) as url:
        services = {"DATABASE_URL": url, "QUEUE_URL": private_broker.url}
        environment = {**os.environ, **services, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
        done = warm.run(["-m", "tests.way_of_a_command"], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^files that pass it on: (\d+), (\d+) changes of rooms$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    files, changes = map(int, found.groups())
    assert files <= MOST_FILES, done.stdout
    assert changes <= MOST_CHANGES, done.stdout
    assert "eventstore/postgres.py" in done.stdout
