"""Tables whose rows cannot be added, changed or deleted by Django."""

from __future__ import annotations

from typing import Any, Never, TypeVar

from django.db import models

Row = TypeVar("Row", bound=models.Model, covariant=True)


class AppendOnlyQuerySet(models.QuerySet[Row]):
    """A queryset that only reads. Methods that write raise TypeError before anything reaches the database."""

    def bulk_create(self, objs: Any, *args: Any, **kwargs: Any) -> Never:
        raise refusal(self.model, "added")

    def bulk_update(self, objs: Any, *args: Any, **kwargs: Any) -> Never:
        raise refusal(self.model, "changed")

    def update(self, **kwargs: Any) -> Never:
        raise refusal(self.model, "changed")

    def delete(self) -> Never:
        raise refusal(self.model, "deleted")


def refusal(model: type[models.Model], done: str) -> TypeError:
    name = model._meta.verbose_name_plural
    return TypeError(
        f"{name} cannot be {done} by Django: the driver of the event store writes them, and they stay as they are; "
        f"in a test that needs it, use {model.__name__}.unprotected"
    )


class AppendOnly(models.Model):
    """The base of models whose rows never change. Saving or deleting an instance raises TypeError, as do the methods of
    ``objects`` that write. Loading fixtures and ``flush`` work.

    ``unprotected`` is a manager that writes, for tests that need a history that no command can make.
    """

    objects = models.Manager.from_queryset(AppendOnlyQuerySet)()
    unprotected = models.Manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> Never:
        raise refusal(type(self), "added" if self._state.adding else "changed")

    def delete(self, *args: Any, **kwargs: Any) -> Never:
        raise refusal(type(self), "deleted")
