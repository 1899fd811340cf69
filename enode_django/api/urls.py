from __future__ import annotations

from importlib import import_module

from django.apps import apps
from django.urls import path, register_converter
from django.urls.converters import PathConverter

from enode_django.exceptions import missing_extra

try:
    import rest_framework  # noqa: F401  the views need it
except ImportError as error:
    raise missing_extra("api", error) from error

from enode_django.api.aggregates import AggregateEventsView, AggregateView, FeedView
from enode_django.api.commands import CommandsView, CommandView
from enode_django.api.sse import EventStreamView

if apps.is_installed("drf_spectacular"):
    import_module("enode_django.api.openapi")  # registers the descriptions of the views

app_name = "enode_api"


class IdConverter(PathConverter):
    """Ids may hold slashes and line breaks."""

    regex = "(?s:.+)"


register_converter(IdConverter, "enode_id")

urlpatterns = [
    path("commands/", CommandsView.as_view(), name="commands"),
    path("commands/<enode_id:id>/", CommandView.as_view(), name="command"),
    path("aggregates/<str:type>/<enode_id:id>/events/", AggregateEventsView.as_view(), name="aggregate-events"),
    path("aggregates/<str:type>/", AggregateView.as_view(schema=None), name="aggregate-by-query"),
    path("aggregates/<str:type>/<enode_id:id>/", AggregateView.as_view(), name="aggregate"),
    path("events/", FeedView.as_view(), name="events"),
    path("events/stream/", EventStreamView.as_view(), name="stream"),
]
