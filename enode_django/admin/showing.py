"""What the pages of the admin have in common."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

STYLES = {"all": ("enode_django/operate.css",)}
"""For the ``Media`` of an admin class."""


class ReadOnly:
    """Nobody adds, changes or deletes, superusers neither."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def as_json(value: Any) -> str:
    return json.dumps(_with_text_keys(value), indent=2, ensure_ascii=False, default=str)


def _with_text_keys(value: Any) -> Any:
    """JSON knows no other keys than text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def preformatted(text: str) -> SafeString:
    """For pages with `STYLES`."""
    return format_html('<pre class="enode-text">{}</pre>', text)
