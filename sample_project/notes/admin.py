from __future__ import annotations

from django.contrib import admin

from sample_project.notes.models import Note
from sample_project.read_only import ReadOnlyAdmin


@admin.register(Note)
class NoteAdmin(ReadOnlyAdmin):
    list_display = ("aggregate_root_id", "title", "changed_at")
    search_fields = ("title",)
