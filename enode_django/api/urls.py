from __future__ import annotations

from importlib import import_module

from django.apps import apps
from django.urls import path

from enode_django.api.aggregates import AggregateEventsView, AggregateView, FeedView
from enode_django.api.commands import CommandsView, CommandView
from enode_django.api.sse import EventStreamView

if apps.is_installed("drf_spectacular"):
    import_module("enode_django.api.openapi")  # tells it what the views are like

app_name = "enode_api"

# Ids may hold slashes.
urlpatterns = [
    path("commands/", CommandsView.as_view(), name="commands"),
    path("commands/<path:id>/", CommandView.as_view(), name="command"),
    path("aggregates/<str:type>/<path:id>/events/", AggregateEventsView.as_view(), name="aggregate-events"),
    path("aggregates/<str:type>/<path:id>/", AggregateView.as_view(), name="aggregate"),
    path("events/", FeedView.as_view(), name="events"),
    path("events/stream/", EventStreamView.as_view(), name="stream"),
]
