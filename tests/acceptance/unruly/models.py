from __future__ import annotations

from django.db import models


class Remark(models.Model):
    account = models.CharField(max_length=255)
    text = models.TextField()

    def __str__(self) -> str:
        return f"{self.account}: {self.text}"


class Page(models.Model):
    account = models.CharField(max_length=255)
    amount = models.DecimalField(max_digits=20, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.account}: {self.amount}"


class Cover(models.Model):
    """Of all pages of an account; no projection declares it."""

    account = models.CharField(max_length=255, unique=True)
    pages = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.account}: {self.pages} pages"
