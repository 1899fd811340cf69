from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Tags, register
from django.utils.module_loading import autodiscover_modules, import_string

if TYPE_CHECKING:
    from enode_django.domain.reading import Reader


class EnodeConfig(AppConfig):
    name = "enode_django"
    label = "enode_django"
    verbose_name = "Event sourcing"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from enode_django.checks.api import check_api
        from enode_django.checks.backends import check_backends
        from enode_django.checks.settings import check_settings
        from enode_django.checks.store import (
            check_constraints,
            check_durability,
            check_encoding,
            check_sessions,
            check_shards,
            check_store,
        )
        from enode_django.conf import conf
        from enode_django.conf.groups import DISCOVERED_MODULES
        from enode_django.domain.provided import provided
        from enode_django.exceptions import ConfigurationError

        provided.label_of = _label_of
        provided.make_reader = _make_reader
        register(check_settings, Tags.compatibility)
        register(check_backends, Tags.compatibility)
        register(_later("definitions.check_definitions", _is_anything_declared), Tags.models)
        register(check_api, Tags.models)
        register(check_store, Tags.compatibility)
        register(check_shards, Tags.database)
        register(check_constraints, Tags.database)
        register(check_encoding, Tags.database)
        register(check_sessions, Tags.database, deploy=True)
        register(check_durability, Tags.database, deploy=True)
        register(_later("subscribers.check_subscribers", _is_anything_declared), Tags.models)
        register(_later("subscribers.check_rebuilds", bool), Tags.database)
        register(_later("subscribers.check_owners", bool), Tags.database)
        register(_later("subscribers.check_states", bool), Tags.database)
        register(_later("scheduling.check_scheduled", bool), Tags.database)
        register(_later("deploy.check_queue"), Tags.compatibility, deploy=True)
        register(_later("deploy.check_production"), Tags.security, deploy=True)
        try:
            modules = conf().AUTODISCOVER_MODULES
        except ConfigurationError:  # the system check reports it; a traceback from here would prevent that
            modules = DISCOVERED_MODULES
        if not isinstance(modules, list | tuple):  # the same
            modules = DISCOVERED_MODULES
        autodiscover_modules(*modules)
        if address := os.environ.get("ENODE_DEVELOPMENT"):
            from enode_django.development.joining import join

            join(address)


@cache  # so that Django has each check once, also if it sets the app up again
def _later(path: str, is_needed: Callable[[Sequence[str] | None], bool] = lambda _: True) -> Callable[..., Any]:
    """Return a check that imports its module when it is called, because few processes need it (`check --deploy`,
    reading histories), and only if ``is_needed`` for the databases that Django checks."""

    def called(
        app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
    ) -> list[CheckMessage]:
        if not is_needed(databases):
            return []
        check: Callable[..., list[CheckMessage]] = import_string(f"enode_django.checks.{path}")
        return check(app_configs, databases=databases, **options)

    return called


def _is_anything_declared(_: Sequence[str] | None) -> bool:
    # A process that has not imported the domain has declared nothing, and need not import it to check that.
    return "enode_django.domain.declarations" in sys.modules


def _make_reader() -> Reader:
    from enode_django.history.reading import StoreReader

    return StoreReader()


def _label_of(module: str) -> str | None:
    if not apps.apps_ready:
        return None
    config = apps.get_containing_app_config(module)
    if config is not None:
        return config.label
    from enode_django.conf import keeps_in_memory

    # A stored name must not depend on the file that was run. A name kept in memory ends with the process.
    return module.rpartition(".")[2].strip("_") if keeps_in_memory() else None
