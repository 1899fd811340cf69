from __future__ import annotations

from django.contrib import admin

from enode_django.admin import ReadModelAdmin
from sample_project.conference.models import OrderSummary


@admin.register(OrderSummary)
class OrderSummaryAdmin(ReadModelAdmin):
    list_display = ("aggregate_root_id", "conference_id", "customer_id", "seats", "state", "placed_at")
    list_filter = ("state",)
    search_fields = ("aggregate_root_id__exact", "customer_id__exact", "conference_id__exact")
