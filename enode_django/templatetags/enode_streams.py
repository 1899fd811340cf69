"""Filters that turn what the event browser shows into addresses of its pages."""

from __future__ import annotations

from django import template

from enode_django.admin import links
from enode_django.models import EventStream

register = template.Library()
register.filter("aggregate_url", links.aggregate_url)
register.filter("search_url", links.search_url)
register.filter("state_url", links.state_url)


@register.filter
def stream_url(stream: EventStream, alias: str) -> str:
    return links.stream_url(stream.sequence, alias)


@register.filter
def causation_url(stream: EventStream) -> str:
    if stream.version is None:
        return links.command_url(stream.aggregate_root_id, stream.command_id)
    return links.version_url(stream.aggregate_root_id, stream.version)
