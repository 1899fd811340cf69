"""Subscribers in the admin: the lag and the parked aggregates of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern

from enode_django.admin.databases import within
from enode_django.admin.linking import group_url, list_url, may_open, subscriber_anchor
from enode_django.admin.showing import ModelAdmin, ReadOnly, page_at, rendered
from enode_django.conf import conf
from enode_django.exceptions import EnodeError
from enode_django.models import Subscriber, Subscription

if TYPE_CHECKING:
    from enode_django.eventing.subscribers import Subscriber as Following
    from enode_django.monitoring.lags import Lag


class Row(NamedTuple):
    """A subscriber with its lag. A URL is empty if the page has nothing to show, or the user may not see it.
    ``group_url`` is that of the consumer group."""

    kind: str
    database: str
    lag: Lag
    parked_url: str
    anchor: str
    group_url: str


@admin.register(Subscriber)
class SubscriberAdmin(ReadOnly, ModelAdmin):
    """One page, for users who may view subscribers."""

    def get_urls(self) -> list[URLPattern]:
        return [page_at(self, "", self.changelist_view, "changelist", self.has_view_permission)]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):  # a project may call it for a page of its own
            raise PermissionDenied
        may_see_parked = any(may_open(request, f"enode_django.{right}_parkedevent") for right in ("view", "change"))
        may_see_topics = may_open(request, "enode_django.view_topic")
        try:
            context, status = _found(may_see_parked=may_see_parked, may_see_topics=may_see_topics), 200
        except (EnodeError, DatabaseError) as error:
            context, status = {"problem": str(error)}, 503
        return rendered(self, request, "subscribers", "Subscribers", context, status)


def _found(*, may_see_parked: bool, may_see_topics: bool) -> dict[str, Any]:
    from enode_django.eventing.registry import subscriber_databases  # see the package
    from enode_django.eventing.unowned import unowned_in
    from enode_django.monitoring.lags import ask_lags
    from enode_django.runtime import running_subscribers

    lags, problems = ask_lags()
    running = {subscriber.name: subscriber for subscriber in running_subscribers()}
    return {
        "rows": [_row(running[lag.subscriber], lag, may_see_parked, may_see_topics) for lag in lags],
        "problems": problems,
        "subscriptions": _subscriptions([*running.values()]),
        "unowned": unowned_in(subscriber_databases()),
    }


def _row(subscriber: Following, lag: Lag, may_see_parked: bool, may_see_topics: bool) -> Row:
    from enode_django.eventing.subscribers import key_of  # see the package

    url = ""
    if lag.parked and may_see_parked:
        url = within(subscriber.database, list_url("parkedevent", subscriber=key_of(subscriber)))
    group = (
        group_url(conf().SUBSCRIBERS.TOPIC, key_of(subscriber)) if may_see_topics and lag.waiting is not None else ""
    )
    return Row(_kind(subscriber), subscriber.database, lag, url, subscriber_anchor(subscriber.name), group)


def _kind(subscriber: Following) -> str:
    from enode_django.eventing.base_projections import BaseProjection  # see the package
    from enode_django.eventing.event_handlers import EventHandlerGroup
    from enode_django.eventing.process_managers import ProcessManager

    if isinstance(subscriber, BaseProjection):
        return "projection"
    if isinstance(subscriber, ProcessManager):
        return "process manager"
    return "event handlers" if isinstance(subscriber, EventHandlerGroup) else "snapshots"


def _subscriptions(running: Sequence[Following]) -> Iterator[tuple[str, str, Subscription]]:
    """Yield the name, the anchor of the row and the subscription of each running subscriber, shard by shard: where it
    began, and how far it was compared with the store."""
    from enode_django.eventing.subscribers import key_of  # see the package

    for alias in sorted({subscriber.database for subscriber in running}):
        names = {key_of(one): one.name for one in running if one.database == alias}
        for known in Subscription.objects.using(alias).filter(subscriber__in=names).order_by("subscriber", "shard"):
            name = names[known.subscriber]
            yield name, subscriber_anchor(name), known
