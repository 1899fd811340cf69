from __future__ import annotations

from django.db import models

from enode_django.models import ReadModel


class Note(ReadModel):
    title = models.TextField()
    changed_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.title
