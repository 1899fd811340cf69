"""Turn failed commands into HTTP statuses and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from enode_django.commanding.results import CommandResult
from enode_django.domain.refusals import DomainException, VersionMismatch
from enode_django.exceptions import (
    AggregateAlreadyExists,
    AggregateNotFound,
    AggregateTypeMismatch,
    CommandIdReused,
    InvalidField,
    MessageTooLarge,
    Path,
    UnknownMessageType,
)
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.registry import types

NOT_FOUND, CONFLICT, CHANGED, INVALID, BROKEN = 404, 409, 412, 400, 500

_STATUSES: Mapping[str, int] = {
    AggregateNotFound.__name__: NOT_FOUND,
    AggregateTypeMismatch.__name__: NOT_FOUND,
    AggregateAlreadyExists.__name__: CONFLICT,
    CommandIdReused.__name__: CONFLICT,
    InvalidField.__name__: INVALID,
    MessageTooLarge.__name__: INVALID,
}
_TEXTS: Mapping[int, Any] = {
    NOT_FOUND: _("There is none with this id."),
    CONFLICT: _("There is one with this id already."),
    CHANGED: _("It was changed meanwhile. Look at it as it is now, and send it again if you still want to."),
    INVALID: _("This cannot be stored. Is a value too long?"),
    BROKEN: _("An error kept this from being done. It took no effect."),
}


def status_of(failed: CommandResult) -> int:
    """The HTTP status: 412 for a `VersionMismatch`, 409 for another domain exception, and 500 for what only a
    developer can mend."""
    if failed.error_type == types.name_of(VersionMismatch):
        return CHANGED
    return CONFLICT if _is_refusal(failed) else _STATUSES.get(failed.error_type, BROKEN)


def text_of(failed: CommandResult) -> Any:
    """Return a text for people, translated when it is shown. A domain exception has its own text; the texts of other
    errors are for developers, and are in the log of the workers."""
    status = status_of(failed)
    if status == CONFLICT and failed.error_message and _is_refusal(failed):
        return failed.error_message
    return _TEXTS[status]


def texts_of(errors: Mapping[Path, str]) -> list[str]:
    """Return the errors within a value, each with its place there."""
    return [f"{'.'.join(map(str, path))}: {text}" if path else text for path, text in errors.items()]


def _is_refusal(failed: CommandResult) -> bool:
    """Return True for a domain exception. A stored crash is none: its text is for developers only."""
    try:
        return not issubclass(types.class_of(DomainException, failed.error_type), CommandCrashed)
    except UnknownMessageType:
        return False
