"""Template filters for the URLs, names and times of the event browser.

Template engines import this module in every project, also without the admin. So filters import the admin when they are
used.
"""

from __future__ import annotations

from typing import Any

from django import template

from enode_django.models import EventStream

register = template.Library()


def _links() -> Any:
    from enode_django.admin import links

    return links


@register.filter
def aggregate_url(aggregate_root_id: str) -> Any:
    return _links().aggregate_url(aggregate_root_id)


@register.filter
def search_url(id: str) -> Any:
    return _links().search_url(id)


@register.filter
def state_url(aggregate_root_id: str) -> Any:
    return _links().state_url(aggregate_root_id)


@register.filter
def stream_url(stream: EventStream, alias: str) -> Any:
    return _links().stream_url(stream.sequence, alias)


@register.filter
def subscriber_url(name: str) -> str:
    from enode_django.admin import linking

    return linking.subscriber_url(name)


@register.filter
def causation_url(stream: EventStream) -> Any:
    return _links().step_url(stream)


@register.filter
def event_names(stream: EventStream) -> Any:
    """Return the type names of the row's events or refusal, or why they cannot be read; nothing for a row without
    events."""
    from enode_django.admin.stream_contents import summary_of_row

    summary = summary_of_row(stream)
    return summary.events or summary.trouble if summary else ()


@register.filter
def moment(value: Any) -> Any:
    """Return a time as all pages show it; a dash for none."""
    from enode_django.admin.moments import shown_moment

    return shown_moment(value or None)
