from __future__ import annotations

import pytest

pytest_plugins = ["tests.services", "tests.emptying", "enode_django.pytest_plugin"]


@pytest.fixture(scope="session")
def django_db_setup(postgres_url: str, django_db_setup: None) -> None:
    """Without a server, skip before Django tries to make its test database."""
