from __future__ import annotations

from django.contrib import admin

from enode_django.admin import ReadModelAdmin
from sample_project.notes.models import Note


@admin.register(Note)
class NoteAdmin(ReadModelAdmin):
    list_display = ("aggregate_root_id", "title", "changed_at")
    search_fields = ("title",)
