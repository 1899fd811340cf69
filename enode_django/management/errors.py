"""Errors that end a management command with a text, not with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from enode_django.eventstore.sqlstates import DATABASE_ERRORS, remedy
from enode_django.exceptions import EnodeError


@contextmanager
def errors_shown() -> Iterator[None]:
    """Turn errors of this package and of databases into a `CommandError`."""
    try:
        yield
    except EnodeError as error:
        raise CommandError(str(error)) from error
    except DATABASE_ERRORS as error:
        raise CommandError(f"{error}{remedy(error)}") from error
