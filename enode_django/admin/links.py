"""The URLs of the event browser's pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.urls import reverse
from django.utils.http import urlencode

from enode_django.history.steps import Step, keys_of_refusal, place_of_event

if TYPE_CHECKING:
    from enode_django.eventstore.base import StreamRecord
    from enode_django.models import EventStream

_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_QUOTED = re.compile(rb"_([0-9A-F]{2})")


def search_url(id: str) -> str:
    return reverse("admin:enode_django_eventstream_changelist", query={"q": id})


def stream_url(sequence: int, alias: str) -> str:
    return reverse("admin:enode_django_eventstream_change", args=(sequence,), query={"shard": alias})


def aggregate_url(aggregate_root_id: str, site: str | None = None) -> str:
    """Return the URL of an aggregate's page in the admin site of this name; by default in Django's own."""
    return reverse("admin:enode_django_eventstream_aggregate", args=(_quoted(aggregate_root_id),), current_app=site)


def state_url(aggregate_root_id: str) -> str:
    return reverse("admin:enode_django_eventstream_state", args=(_quoted(aggregate_root_id),))


def _quoted(id: str) -> str:
    """Encode an id for the path of a URL, in which it may have any character.

    >>> _quoted("a/b é")
    'a_2Fb_20_C3_A9'
    """
    return _UNSAFE.sub(lambda match: "".join(f"_{byte:02X}" for byte in match[0].encode()), id)


def id_of(quoted: str) -> str:
    """Decode an id. Raises `ValueError` if its bytes are not UTF-8."""
    return _QUOTED.sub(lambda match: bytes([int(match[1], 16)]), quoted.encode()).decode()


def version_url(aggregate_root_id: str, version: int) -> str:
    return f"{aggregate_url(aggregate_root_id)}?{urlencode({'version': version})}#causation"


def command_url(aggregate_root_id: str, command_id: str) -> str:
    """Return the URL of the page about a refused command, which has no version."""
    return f"{aggregate_url(aggregate_root_id)}?{urlencode({'command': command_id})}#causation"


def step_url(step: Step | StreamRecord | EventStream) -> str:
    """Return the URL of the page about what a command did or why it was refused."""
    if step.version is None:
        return command_url(step.aggregate_root_id, step.command_id)
    return version_url(step.aggregate_root_id, step.version)


def cause_url(causation_id: Any) -> str:
    """Return the URL of the page about the cause that metadata names; empty if it names none. The page may not
    exist."""
    if not isinstance(causation_id, str) or not causation_id:
        return ""
    place = place_of_event(causation_id)
    if place is not None:
        return version_url(*place)
    for command_id, root in keys_of_refusal(causation_id):
        if root and command_id:
            return command_url(root, command_id)
    return search_url(causation_id)
