from __future__ import annotations

from django.contrib import admin

from enode_django.admin import ReadModelAdmin
from sample_project.conference.models import Availability, CustomerSummary, OrderSummary


@admin.register(OrderSummary)
class OrderSummaryAdmin(ReadModelAdmin):
    list_display = ("aggregate_root_id", "conference_id", "customer_id", "seats", "state", "placed_at")
    list_filter = ("state",)
    search_fields = ("aggregate_root_id__exact", "customer_id__exact", "conference_id__exact")


@admin.register(Availability)
class AvailabilityAdmin(ReadModelAdmin):
    aggregate_field = "conference"
    list_display = ("conference", "title", "seats", "reserved", "confirmed")
    search_fields = ("conference__exact", "title__startswith")


@admin.register(CustomerSummary)
class CustomerSummaryAdmin(ReadModelAdmin):
    aggregate_field = "customer"
    list_display = ("customer", "name", "email", "placed", "paid")
    search_fields = ("customer__exact", "email__startswith")
