"""The queue in the admin: topics, groups, producers, consumers, messages and dead letters."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern

from enode_django.admin.auditing import Audited
from enode_django.admin.showing import VIEW_PAYLOAD, ModelAdmin, ReadOnly, on_demand, page_at, rendered
from enode_django.models import Topic

PAGES = "enode_django.admin.topic_pages"


@admin.register(Topic)
class TopicAdmin(Audited, ReadOnly, ModelAdmin):
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
        topic = "<path:object_id>"
        queue = f"{topic}/messages/<str:queue>"
        return [
            page_at(self, "", self.changelist_view, "changelist", self.has_view_permission),
            page_at(self, f"{topic}/change/", self.topic_page, "change", self.has_view_permission),
            page_at(self, f"{topic}/history/", self.history_view, "history", self.has_view_permission),
            page_at(self, f"{topic}/operate/<slug:name>/", self.operation_page, "operate", self.has_change_permission),
            page_at(self, f"{topic}/letters/", self.letters_page, "letters", self.has_view_permission),
            page_at(self, f"{queue}/", self.messages_page, "messages", self.may_read),
            page_at(self, f"{queue}/<str:offset>/", self.message_page, "message", self.may_read),
            page_at(self, f"{queue}/<str:offset>/command/", self.command_page, "command", self.may_send),
        ]

    def page(
        self, request: HttpRequest, template: str, title: str, *, status: int = 200, **context: Any
    ) -> TemplateResponse:
        may = {"may_change": self.has_change_permission(request), "may_read": self.may_read(request)}
        return rendered(self, request, f"queue_{template}", title, {**may, **context}, status)

    def may_read(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and bool(request.user.has_perm(VIEW_PAYLOAD))

    def may_send(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request) and self.may_read(request)
