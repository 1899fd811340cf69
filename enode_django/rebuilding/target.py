"""Projections that can be rebuilt, and the generations of their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from django.core.exceptions import FieldDoesNotExist
from django.db import models, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Max

from enode_django.databases import execute
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.code import is_other_code, rows_fingerprint
from enode_django.eventing.projections import ModelProjection, Projection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import follows, key_of
from enode_django.eventstore.positions import Position
from enode_django.exceptions import RebuildError, RebuildOvertaken
from enode_django.models import ProjectionGeneration, Rebuild, Subscription
from enode_django.rebuilding.clearing import changing, clear, left_over
from enode_django.rebuilding.definitions import Table, describe, quoted
from enode_django.rebuilding.late import without_late
from enode_django.rebuilding.making import make_tables
from enode_django.rebuilding.obstacles import obstacles
from enode_django.rebuilding.shadow import Shadow, declared_models, table_names
from enode_django.serialization.registry import types

State = Rebuild.State
_FINAL = [State.ABANDONED, State.SETTLED]
"""Rebuilds in these states need no tables, except those in use."""


class Target(NamedTuple):
    """A projection to be rebuilt. ``written`` are all models that it writes, ``tables`` the names of their tables."""

    subscriber: BaseProjection
    alias: str
    written: Sequence[type[models.Model]]
    tables: Sequence[str]

    @property
    def name(self) -> str:
        return self.subscriber.name

    @property
    def key(self) -> str:
        return key_of(self.subscriber)

    @classmethod
    def of(cls, name: str) -> Target:
        """Return the target of this name. Raises `UnknownSubscriber`, and `RebuildError` if the subscriber is not a
        projection, or shares a table with another one."""
        subscriber = subscribers.get(name)
        tables = table_names(subscriber)
        assert isinstance(subscriber, BaseProjection)
        for other in subscribers.all():
            if other is not subscriber and isinstance(other, BaseProjection):
                shared = sorted(set(tables) & set(table_names(other)))
                if shared:
                    raise RebuildError(
                        f"{name} and {other.name} both write {shared[0]}: neither can be rebuilt without the other; "
                        "give each tables of its own"
                    )
        return cls(subscriber, subscriber.database, declared_models(subscriber), tables)

    def types(self) -> list[str]:
        """Return the stored type names of aggregates that this process knows and that it may follow."""
        return [name for name in types.names_of(AggregateRoot) if follows(self.subscriber, name)]

    def shadow(self, generation: int) -> Shadow:
        return Shadow(self.key, self.alias, generation)

    def generation(self) -> int:
        """Return the generation of the tables in use."""
        known = ProjectionGeneration.objects.using(self.alias).filter(subscriber=self.key)
        return known.values_list("generation", flat=True).first() or 0

    def described(self) -> dict[str, Table]:
        """Return the definitions of the tables in use."""
        with transaction.atomic(using=self.alias):
            return describe(self.alias, self.tables)

    def check(self, tables: Mapping[str, Table] | None = None) -> None:
        """Raise `RebuildError` with all obstacles, if any. Changes nothing. ``tables`` are those in use, if known."""
        with transaction.atomic(using=self.alias):
            found = list(obstacles(self.alias, self.tables, self.described() if tables is None else tables))
        if found:
            raise RebuildError(f"{self.name} cannot be rebuilt: {'; '.join(found)}")

    def applied_migrations(self) -> list[list[str]]:
        """Return the applied migrations of its models' apps."""
        labels = {model._meta.app_label for model in self.written}
        applied = MigrationRecorder.Migration.objects.using(self.alias).filter(app__in=labels)
        return sorted([app, name] for app, name in applied.values_list("app", "name"))

    # -- generations ----------------------------------------------------------------------------------------------

    def rebuilds(self) -> models.QuerySet[Rebuild]:
        return Rebuild.objects.using(self.alias).filter(subscriber=self.key)

    def begin(self, *, keeps_usable: bool = False) -> tuple[Rebuild, Shadow]:
        """Make empty tables for the next generation, and drop those that earlier rebuilds left: a running one finds its
        tables gone. With ``keeps_usable`` those stay that can be swapped or put back."""
        while True:
            self.drop_left(keeps_usable=keeps_usable)
            with self._changing():
                if not self._left(keeps_usable).exists():
                    return self._begun()

    def drop_left(self, *, keeps_usable: bool = False) -> int:
        """Drop the tables that earlier rebuilds left, as `begin` does. Return the number of their builds."""
        with self._changing():
            for left in self._left(keeps_usable).select_for_update():
                self._leave(left)
        return self._clear()

    def _left(self, keeps_usable: bool) -> models.QuerySet[Rebuild]:
        left = self.rebuilds().exclude(state__in=_FINAL)
        usable = models.Q(state=State.SWAPPED) | (models.Q(state=State.BUILDING) & ~models.Q(positions={}))
        return left.exclude(usable) if keeps_usable else left

    def _begun(self) -> tuple[Rebuild, Shadow]:
        replaces = self.generation()
        newest = self.rebuilds().aggregate(newest=Max("generation"))["newest"] or 0
        shadow = self.shadow(max(newest, replaces) + 1)
        tables = self._made(shadow, is_bare=self.subscriber.indexes_after_load)
        rebuild = self.rebuilds().create(
            subscriber=self.key,
            generation=shadow.generation,
            replaces=replaces,
            tables={name: table.shape for name, table in tables.items()},
            fingerprint=rows_fingerprint(self.subscriber),
        )
        return rebuild, shadow

    def _clear(self) -> int:
        """Drop the tables of rebuilds that are not needed. Return the number of these builds."""
        shadows = left_over(self._unneeded())
        for shadow in shadows:
            clear(shadow)
        return len(shadows)

    def _unneeded(self) -> Iterator[Shadow]:
        in_use = self.generation()
        known = list(self.rebuilds())  # all at one moment: another rebuild may begin meanwhile
        final, others = ([one for one in known if (one.state in _FINAL) == is_final] for is_final in (True, False))
        yield from map(self.shadow, _generations(final) - _generations(others) - {in_use})

    def keep(
        self,
        rebuild: Rebuild,
        positions: Mapping[int, Position],
        corrections: Mapping[int, int],
        generations: Mapping[int, int],
    ) -> None:
        """Record that the tables are built and compared. They hold everything stored below these positions of the
        shards, read in these generations with the corrections up to these numbers."""
        rebuild.positions = {str(number): str(position) for number, position in positions.items()}
        rebuild.corrections = {str(number): newest for number, newest in corrections.items()}
        rebuild.generations = {str(number): generation for number, generation in generations.items()}
        rebuild.save(using=self.alias, update_fields=["positions", "corrections", "generations"])

    def is_kept(self, rebuild: Rebuild) -> bool:
        """Return True if the rebuild only lacks the swap."""
        return self.rebuilds().filter(pk=rebuild.pk, state=State.BUILDING).exclude(positions={}).exists()

    def kept(self) -> Rebuild | None:
        """Return the newest rebuild by this process's code that only lacks the swap."""
        found = self.rebuilds().filter(state=State.BUILDING, fingerprint=rows_fingerprint(self.subscriber))
        return found.exclude(positions={}).order_by("generation").last()

    def keep_with_this_code(self) -> None:
        """Record that the tables in use are as this process's code builds them."""
        self._built_by().update(fingerprint=rows_fingerprint(self.subscriber))

    def is_of_other_code(self) -> bool:
        """Return True if the handlers' code is known to have changed since the tables in use were built."""
        known = self._built_by().filter(fingerprint__isnull=False).values_list("fingerprint", flat=True)
        return any(is_other_code(built_by or "", rows_fingerprint(self.subscriber)) for built_by in known)

    def _built_by(self) -> models.QuerySet[Any]:
        """Return the rows with the fingerprint of the code that has built the tables in use: of a rebuild, or of the
        subscriptions that began with the tables of the migrations."""
        if generation := self.generation():
            return self.rebuilds().filter(generation=generation)
        return Subscription.objects.using(self.alias).filter(subscriber=self.key)

    def _changing(self) -> AbstractContextManager[None]:
        return changing(self.alias, self.key)

    def make_scratch(self, rebuild: Rebuild) -> Shadow:
        """Make tables like those in use, to be dropped with the rebuild at the latest. Raises `RebuildOvertaken`."""
        scratch = self.shadow(-rebuild.generation)
        for left in left_over([scratch]):
            clear(left)
        with self._changing():
            self.locked(rebuild, State.BUILDING)
            self._made(scratch, is_bare=False)
        return scratch

    def replaced(self, rebuild: Rebuild) -> Shadow:
        """Return the replaced tables, ready to be opened. Raises `RebuildOvertaken` if they are gone."""
        shadow = self.shadow(rebuild.replaces)
        with self._changing():
            self.locked(rebuild, State.SWAPPED)
            shadow.make_views()
        return shadow

    def analyze(self, shadow: Shadow) -> None:
        """Update the planner's statistics before the tables come into use."""
        for name in self.tables:
            execute(self.alias, f"ANALYZE {quoted(shadow.schema, name)}", None)

    def _made(self, shadow: Shadow, *, is_bare: bool) -> dict[str, Table]:
        """Make tables like those in use, without late parts if ``is_bare``. Return the definitions of those in use."""
        tables = describe(self.alias, self.tables)
        wanted = {name: without_late(table) if is_bare else table for name, table in tables.items()}
        shadow.make_schema()
        shadow.make_views()
        make_tables(self.alias, shadow.schema, wanted)
        with shadow.opened():
            made = describe(self.alias, self.tables)
        for name, table in wanted.items():
            if different := table.differences(made[name]):
                raise RebuildError(f"no table can be made that is like {name}: it would have other {different}")
        return tables

    def abandon(self, rebuild: Rebuild) -> None:
        """Drop what was built, unless it is in use or was dropped already."""
        with self._changing():
            left = self.rebuilds().select_for_update().filter(pk=rebuild.pk, state=State.BUILDING).first()
            if left is not None:
                self._leave(left)
        self._clear()

    def _leave(self, left: Rebuild) -> None:
        """Record that the rebuild is not needed, so that it is not swapped in later."""
        left.state = State.ABANDONED if left.state == State.BUILDING else State.SETTLED
        left.save(using=self.alias, update_fields=["state"])

    def locked(self, rebuild: Rebuild, state: str) -> Rebuild:
        """Return the record, locked in this transaction. Raises `RebuildOvertaken` if its state is another one."""
        found: Rebuild | None = self.rebuilds().select_for_update().filter(pk=rebuild.pk, state=state).first()
        if found is None:
            raise RebuildOvertaken(f"another rebuild of {self.name} has begun meanwhile: nothing is swapped")
        return found

    def is_overtaken(self, rebuild: Rebuild) -> bool:
        """Return True if another rebuild has dropped it."""
        return self.rebuilds().filter(pk=rebuild.pk, state__in=_FINAL).exists()

    def aggregate_field(self, model: type[models.Model]) -> str | None:
        """Return the column of the model's own table that holds the aggregate root id; None if there is none."""
        if isinstance(self.subscriber, ModelProjection):
            return "aggregate_root_id"
        given = self.subscriber.aggregate_field if isinstance(self.subscriber, Projection) else ""
        if not given:
            return None
        try:
            field: Any = model._meta.get_field(given)
        except FieldDoesNotExist:
            return None
        return str(field.column) if field in model._meta.local_concrete_fields else None


def _generations(rebuilds: Iterable[Rebuild]) -> set[int]:
    """Return the generations of the tables that these rebuilds have made or replaced, those for checks included."""
    return {number for one in rebuilds for number in (one.generation, one.replaces, -one.generation)}


def forget_rebuilds(alias: str, subscriber: str) -> None:
    """Drop the tables and records of a subscriber's rebuilds, but not those in use. Not for use in a transaction."""
    known = Rebuild.objects.using(alias).filter(subscriber=subscriber)
    for shadow in left_over(Shadow(subscriber, alias, generation) for generation in _generations(known)):
        clear(shadow)
    known.delete()
    ProjectionGeneration.objects.using(alias).filter(subscriber=subscriber).delete()
