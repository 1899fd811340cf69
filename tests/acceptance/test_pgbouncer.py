"""Workers, web and jobs share a few connections of PgBouncer, transaction by transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_project.embedded import Postgres, Redis
from tests.acceptance.pgbouncer import CONNECTIONS, PgBouncer, PooledStack

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

PAGES = """
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "sample_project.settings"
import django

django.setup()
from django.contrib.auth.models import User
from django.test import Client

client = Client()
client.force_login(User.objects.create_superuser("operator"))
for path in ("/admin/", "/admin/enode_django/eventstream/", "/admin/bank/ledgerentry/"):
    answer = client.get(path, headers={"host": "localhost"})
    assert answer.status_code == 200, (path, answer.status_code)
"""


@pytest.fixture
def stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[PooledStack]:
    faulty_postgres.start()
    faulty_redis.start()
    with (
        PgBouncer(faulty_postgres) as bouncer,
        PooledStack(faulty_postgres, faulty_redis, processors_directory) as stack,
    ):
        stack.bouncer = bouncer
        yield stack


def test_workers_pages_and_jobs_share_connections_transaction_by_transaction(stack: PooledStack, seed: int) -> None:
    stack.start_ready(2, role="all")
    with stack.load(seed, threads=4, varied=True):
        stack.python("-c", PAGES)
        stack.python("manage.py", "rebuildprojection", "bank.Ledger", "--engine", "processes")
        stack.python("manage.py", "enode", "buildsnapshots")
        clients, pooled = stack.connections()
        assert pooled <= CONNECTIONS < clients
    stack.wait_followed()
    stack.check(loaded=False)
    stack.check_read_side()
