"""Turn failed commands into HTTP statuses and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from enode_django.domain.refusals import DomainException, ValueTaken, VersionMismatch
from enode_django.exceptions import (
    AggregateAlreadyExists,
    AggregateNotFound,
    AggregateTypeMismatch,
    CommandFailed,
    CommandIdReused,
    InvalidField,
    InvalidFields,
    InvalidId,
    MessageTooLarge,
    Path,
)

Failure = DomainException | CommandFailed
"""The exceptions of `enode_django.execute_command` for a command that took no effect."""

NOT_FOUND, CONFLICT, CHANGED, INVALID, BROKEN = 404, 409, 412, 400, 500

_STATUSES: Mapping[str, int] = {
    AggregateNotFound.__name__: NOT_FOUND,
    AggregateTypeMismatch.__name__: NOT_FOUND,
    AggregateAlreadyExists.__name__: CONFLICT,
    CommandIdReused.__name__: CONFLICT,
    InvalidField.__name__: INVALID,
    InvalidFields.__name__: INVALID,
    InvalidId.__name__: INVALID,
    MessageTooLarge.__name__: INVALID,
}
_TEXTS: Mapping[int, Any] = {
    NOT_FOUND: _("There is none with this id."),
    CONFLICT: _("There is one with this id already."),
    CHANGED: _("It was changed meanwhile. Look at it as it is now, and send it again if you still want to."),
    INVALID: _("This cannot be stored. Is a value too long?"),
    BROKEN: _("An error kept this from being done. It took no effect."),
}
_REUSED = _("This was sent before with other values. See what it did before you send it with a new id.")


def status_of(error: Failure) -> int:
    """Return the HTTP status: 412 for a `VersionMismatch`, 409 for another domain exception, and for a failure that of
    `_STATUSES`, else 500: only a developer can mend it."""
    if isinstance(error, VersionMismatch):
        return CHANGED
    return CONFLICT if isinstance(error, DomainException) else _STATUSES.get(error.error_type, BROKEN)


def text_of(error: Failure) -> Any:
    """Return a text for users, translated when it is shown. A domain exception has its own text. The texts of other
    errors are for developers, and stay in the workers' log."""
    status = status_of(error)
    if isinstance(error, DomainException) and status == CONFLICT and error.message:
        return error.message
    is_reused = isinstance(error, CommandFailed) and error.error_type == CommandIdReused.__name__
    return _REUSED if is_reused else _TEXTS[status]


def place_of(error: Failure, names: Iterable[str]) -> str | None:
    """Return the first of the ``names`` that is a field of the domain exception with a value other than None, or that a
    `ValueTaken` names; None if there is no such field."""
    if isinstance(error, ValueTaken):
        return next((name for name in names if name in error.fields), None)
    fields: Mapping[str, Any] = error.result.error_fields
    return next((name for name in names if fields.get(name) is not None), None)


def texts_of(errors: Mapping[Path, str]) -> list[str]:
    """Return a text for each error within a value, with its path."""
    return [f"{'.'.join(map(str, path))}: {text}" if path else text for path, text in errors.items()]
