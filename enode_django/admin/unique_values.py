"""Unique values in the admin: to look at. Workers settle them, and ``manage.py enode unique rebuild`` mends them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from enode_django.admin.databases import ByDatabase, ShardFilter, shards
from enode_django.admin.linking import WithLinks
from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import Estimated, IndexedValues, ModelAdmin
from enode_django.models import UniqueValue


@admin.register(UniqueValue)
class UniqueValueAdmin(WithMoments, WithLinks, ByDatabase, ModelAdmin):
    """Nobody changes rows. The values are digests."""

    offered = staticmethod(shards)
    paginator = Estimated
    when_empty = "No aggregate holds a unique value in this database. The first shard has them all."
    list_display = ("short_digest", "name", "aggregate_root_id", "state", "version", "changed_at")
    list_filter = (ShardFilter, ("name", IndexedValues))
    search_fields = ("aggregate_root_id__exact",)
    search_help_text = "a whole aggregate root id"
    ordering = ("-pk",)  # the table can be as long as that of aggregates, and has no index by time
    fields = ("name", "short_digest", "aggregate_root_id", "state", "claims", "releases", "version", "changed_at")

    @admin.display(description="digest", ordering="digest")
    def short_digest(self, row: Any) -> str:
        return bytes(row.digest).hex()[:16]

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        if row.claims:
            return "claimed by a command under way"
        return "held, may be given up" if row.releases else "held"
