"""Pages for rows that lie in several databases. A filter chooses the database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import capfirst

from enode_django.admin.showing import VIEW_PAYLOAD, Listed, Listing, rendered
from enode_django.conf import conf
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, is_away

if TYPE_CHECKING:
    from django.db.models import QuerySet

PARAMETER = "database"

logger = logging.getLogger("enode_django.admin")


def databases() -> list[str]:
    """Return the database of checkpoints, then the other databases of subscribers."""
    from enode_django.eventing.subscribers import checkpoint_database  # see the package
    from enode_django.runtime import running_subscribers

    own = sorted(subscriber.database for subscriber in running_subscribers())
    return list(dict.fromkeys([checkpoint_database(), *own]))


def shards() -> list[str]:
    """Return the aliases of the event store's databases."""
    return list(conf().EVENT_STORE.DATABASES)


def within(alias: str, url: str, offered: Callable[[], Sequence[str]] = databases) -> str:
    """Return the URL of a page for the rows of this database, one of those ``offered``. The first one needs no
    parameter."""
    if alias == offered()[0]:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode({PARAMETER: alias})}"


class DatabaseFilter(admin.SimpleListFilter):
    """Offer the databases, if there are several. `ByDatabase` applies the choice."""

    title = parameter_name = PARAMETER
    offered = staticmethod(databases)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = self.offered()
        return [(alias, alias) for alias in found] if len(found) > 1 else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        chosen = self.value() or self.offered()[0]
        for alias, title in self.lookup_choices:
            url = changelist.get_query_string({PARAMETER: alias})
            yield {"selected": alias == chosen, "query_string": url, "display": title}


class ShardFilter(DatabaseFilter):
    """Offer the databases of the event store."""

    offered = staticmethod(shards)


class ByDatabase(Listed):
    """Mixin for an admin class whose ``list_filter`` has `DatabaseFilter`, or `ShardFilter` with ``offered`` set to
    `shards`. Its pages show the rows of the chosen database, by default the first one. A mixin with pages of its own,
    such as `Audited`, comes after it."""

    offered = staticmethod(databases)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        offered = self.offered()
        alias = request.GET.get(PARAMETER) or offered[0]
        if alias not in offered:
            raise Http404(f"there are no such rows in a database {alias!r}")
        return super().get_queryset(request).using(alias)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return _Listing

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """Return what the links of a page keep of its URL: the filters of the list, and the database of the row, since
        another database may have a row with the same primary key."""
        kept, alias = super().get_preserved_filters(request), request.GET.get(PARAMETER, "")
        return "&".join(filter(None, [kept, urlencode({PARAMETER: alias}) if alias else ""]))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return self._if_there(request, lambda: super(ByDatabase, self).changelist_view(request, extra_context))

    def change_view(self, request: HttpRequest, object_id: str, *arguments: Any, **options: Any) -> HttpResponse:
        return self._if_there(
            request, lambda: super(ByDatabase, self).change_view(request, object_id, *arguments, **options)
        )

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return self._if_there(request, lambda: super(ByDatabase, self).history_view(request, object_id, extra_context))

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return self._if_there(request, lambda: super(ByDatabase, self).delete_view(request, object_id, extra_context))

    def _if_there(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Return the page; if the database is away, a page with status 503 that leads to the other databases. An action
        that finds it away fails, so that its transaction is rolled back."""
        try:
            return view()
        except DATABASE_ERRORS as error:
            if request.method == "POST" or not is_away(error):
                raise
            logger.warning("%s cannot be shown", request.path, exc_info=True)
            offered, listing = self.offered(), reverse(f"{self._urls}_changelist")
            alias = request.GET.get(PARAMETER) or offered[0]
            context = {
                "database": alias,
                "others": [(other, within(other, listing, self.offered)) for other in offered if other != alias],
                "error": str(error) if request.user.has_perm(VIEW_PAYLOAD) else "",
            }
            return rendered(self, request, "database_away", capfirst(str(self.opts.verbose_name_plural)), context, 503)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup == PARAMETER or super().lookup_allowed(lookup, value, request)

    def url_of(self, row: Model, page: str = "change") -> str:
        """Return the URL of a page of this row."""
        return within(row._state.db or "", reverse(f"{self._urls}_{page}", args=[row.pk]), self.offered)

    def list_url_of(self, row: Model) -> str:
        """Return the URL of the list that has this row."""
        return within(row._state.db or "", reverse(f"{self._urls}_changelist"), self.offered)

    @property
    def _urls(self) -> str:
        return f"admin:{self.opts.app_label}_{self.opts.model_name}"


class _Listing(Listing):
    def url_for_result(self, result: Model) -> str:
        offered = cast(ByDatabase, self.model_admin).offered
        return within(result._state.db or "", super().url_for_result(result), offered)
