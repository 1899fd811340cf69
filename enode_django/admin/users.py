"""The names of the users that metadata know by their primary keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError


def user_names(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the names of those users that exist, by primary key as text. Other systems may have written any text."""
    model: Any = get_user_model()
    known = [key for text in keys if (key := _key(model, text)) is not None]
    return {str(key): user.get_username() for key, user in model._default_manager.in_bulk(known).items()}


def _key(model: Any, text: str) -> Any:
    """Return the text as a primary key; None if it is not one."""
    with suppress(ValidationError):
        return model._meta.pk.clean(text, None) if text and "\0" not in text else None
    return None
