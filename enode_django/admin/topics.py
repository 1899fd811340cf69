"""The queue in the admin: topics, groups, producers, consumers, messages and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from enode_django.admin.auditing import Audited
from enode_django.admin.showing import VIEW_PAYLOAD, ReadOnly, on_demand
from enode_django.models import Topic

if TYPE_CHECKING:
    TopicBase = admin.ModelAdmin[Topic]
else:  # generic for the type checker only
    TopicBase = admin.ModelAdmin

PAGES = "enode_django.admin.topic_pages"

View = Callable[..., HttpResponse]


@admin.register(Topic)
class TopicAdmin(Audited, ReadOnly, TopicBase):
    """Users with ``view_topic`` or ``change_topic`` see the queue. Messages need ``view_payload``, too. Operations need
    ``change_topic``. A new command like the one in a message needs ``change_topic`` and ``view_payload``."""

    changelist_view = on_demand(f"{PAGES}.topics_page")
    topic_page = on_demand(f"{PAGES}.topic_page")
    operation_page = on_demand(f"{PAGES}.operation_page")
    letters_page = on_demand(f"{PAGES}.letters_page")
    messages_page = on_demand(f"{PAGES}.messages_page")
    message_page = on_demand(f"{PAGES}.message_page")
    command_page = on_demand(f"{PAGES}.command_page")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("enode_django.change_topic"))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Topic:
        """Return a topic of this name, even if the queue has no such topic. Topics have no table."""
        return Topic(name=object_id)

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: View, name: str) -> URLPattern:
            return path(route, self.admin_site.admin_view(view), name=f"enode_django_topic_{name}")

        return [
            page("", self.changelist_view, "changelist"),
            page("<path:object_id>/change/", self.topic_page, "change"),
            page("<path:object_id>/history/", self.history_view, "history"),
            page("<path:object_id>/operate/<slug:name>/", self.operation_page, "operate"),
            page("<path:object_id>/letters/", self.letters_page, "letters"),
            page("<path:object_id>/messages/<str:queue>/", self.messages_page, "messages"),
            page("<path:object_id>/messages/<str:queue>/<str:offset>/", self.message_page, "message"),
            page("<path:object_id>/messages/<str:queue>/<str:offset>/command/", self.command_page, "command"),
        ]

    def page(
        self, request: HttpRequest, template: str, title: str, *, status: int = 200, **context: Any
    ) -> TemplateResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        may = {"may_change": self.has_change_permission(request), "may_read": request.user.has_perm(VIEW_PAYLOAD)}
        return TemplateResponse(
            request, f"enode_django/admin/queue_{template}.html", {**shared, **may, **context}, status=status
        )

    def check_may_read(self, request: HttpRequest) -> None:
        if not request.user.has_perm(VIEW_PAYLOAD):
            raise PermissionDenied
