"""``manage.py enode groups``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser

from enode_django.management.auditing import add_reason, audited
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand

if TYPE_CHECKING:
    from django.contrib.auth.models import Permission

LOOKS, ON_CALL = "enode: looks", "enode: on call"
VIEW_PAYLOAD = "view_payload"
ON_CALL_PERMISSIONS = (
    "change_deadletter",
    "change_outboxcommand",
    "change_scheduledcommand",
    "change_parkedevent",
    "delete_generationcheck",
    "add_job",
    "change_job",
    "change_rebuild",
    "change_topic",
)
"""The permissions of people on call, in addition to viewing."""


class Command(PrintableCommand):
    help = (
        f"Makes the group {LOOKS!r}, whose members may open the framework's pages of the admin, and {ON_CALL!r}, whose "
        "members may also act there. Neither may see the payload of events. Existing groups get missing permissions, "
        "and lose none."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_reason(parser)

    def handle(self, *, reason: str, **options: Any) -> None:
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError("groups need 'django.contrib.auth' in INSTALLED_APPS")
        with errors_shown():
            self._make_groups(reason)

    def _make_groups(self, reason: str) -> None:
        known = _permissions()
        missing = {*ON_CALL_PERMISSIONS, "view_eventstream"} - known.keys()
        if missing:
            raise CommandError(f"the database has no permissions {sorted(missing)!r}; run manage.py migrate first")
        looks = [name for name in known if name.startswith("view_") and name != VIEW_PAYLOAD]
        for group, names in ((LOOKS, looks), (ON_CALL, [*looks, *ON_CALL_PERMISSIONS])):
            with audited("grant", "group", group, reason=reason) as details:
                said = _grant(group, [known[name] for name in names])
                details.append(said)
            self.stdout.write(said)


def _permissions() -> dict[str, Permission]:
    """Return the permissions of this app by codename."""
    from django.contrib.auth.models import Permission  # only if its app is installed

    own = Permission.objects.filter(content_type__app_label="enode_django").order_by("codename")
    return {permission.codename: permission for permission in own}


def _grant(name: str, permissions: list[Permission]) -> str:
    """Add permissions to a group. Return a line with their number."""
    from django.contrib.auth.models import Group  # only if its app is installed

    group, _ = Group.objects.get_or_create(name=name)
    before = group.permissions.count()
    group.permissions.add(*permissions)
    after = group.permissions.count()
    return f"{name} has {after} permissions, {after - before} of them new"
