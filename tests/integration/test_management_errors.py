"""Errors of databases as management commands tell them."""

from __future__ import annotations

import pytest
from django.core.management.base import CommandError
from django.db import connection

from enode_django.management.errors import errors_shown

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT FROM missing", "; run manage.py migrate"),
        ("SELECT missing FROM django_migrations", "; run manage.py migrate"),
        ("SET LOCAL ROLE pg_signal_backend; SELECT FROM django_migrations", "; GRANT its user what is missing"),
        ("SELECT 1 / 0", "division by zero"),
        ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)", "canceling statement due to statement timeout"),
    ],
)
def test_only_missing_tables_and_columns_lead_to_the_migrations(statement: str, told: str) -> None:
    with pytest.raises(CommandError) as caught, errors_shown(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert str(caught.value).endswith(told)
