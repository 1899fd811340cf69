from __future__ import annotations

from django.contrib import admin

from enode_django.admin import ReadModelAdmin
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee


@admin.register(AccountSummary)
class AccountSummaryAdmin(ReadModelAdmin):
    list_display = ("aggregate_root_id", "owner", "balance", "available", "opened_at", "closed")
    list_filter = ("closed",)
    search_fields = ("aggregate_root_id__exact", "owner__startswith")
    ordering = ("aggregate_root_id",)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadModelAdmin):
    aggregate_field = "account"
    list_display = ("account", "version", "kind", "amount", "balance", "transfer", "booked_at")
    list_filter = ("kind",)
    search_fields = ("account__exact", "transfer__exact")
    ordering = ("account", "version")


@admin.register(Payee)
class PayeeAdmin(ReadModelAdmin):
    aggregate_field = "source"
    list_display = ("source", "target", "transfers", "last_at")
    search_fields = ("source__exact", "target__exact")
    ordering = ("source", "target")
