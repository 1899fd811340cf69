"""Health probes of a web process, for an orchestrator or a load balancer.

Anonymous clients see ``ok`` or ``not ok`` for each part. Reasons are shown to staff with the permission to view
processor reports, and to everybody while ``DEBUG`` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from enode_django.databases import without_atomic_requests
from enode_django.monitoring import Health, Status, gather

PERMISSION = "enode_django.view_processorreport"
NEEDED = ("database", "queue")
PROCESSORS = ("processors",)
TIMEOUT = 3.0
UNAVAILABLE = 503


View = Callable[[HttpRequest], JsonResponse]


def _probe(view: View) -> View:
    """Make a view public, even if the project requires a login, and never cached. It runs outside of a transaction:
    with ``ATOMIC_REQUESTS`` Django would wait for a database before calling it."""
    return login_not_required(never_cache(require_safe(without_atomic_requests(view))))


@_probe
def live(request: HttpRequest) -> JsonResponse:
    """Answer 200. No other service is asked, since its failure is not a reason to restart this process."""
    return JsonResponse({"status": "ok"})


@_probe
def ready(request: HttpRequest) -> JsonResponse:
    """Answer 503 if a part of the status is bad (a database or the queue does not answer, migrations are not applied,
    the broker found damage), else 200. With ``?processors`` in the address, processors must run, too."""
    parts = NEEDED + (PROCESSORS if "processors" in request.GET else ())
    status = gather(parts, timeout=TIMEOUT)
    is_ready = status.health < Health.BAD
    words = {part.name: _word(part.health < Health.BAD) for part in status.parts}
    answer: dict[str, Any] = {"status": _word(is_ready), "parts": words}
    if _may_see_details(request, status):
        answer["problems"] = {part.name: [problem.reason for problem in part.problems] for part in status.parts}
    return JsonResponse(answer, status=200 if is_ready else UNAVAILABLE)


def _word(is_well: bool) -> str:
    return "ok" if is_well else "not ok"


def _may_see_details(request: HttpRequest, status: Status) -> bool:
    """Return True if the user may see reasons. Permissions are in a database, so it is not asked while the part
    ``database`` is bad."""
    if settings.DEBUG:
        return True
    if status.part("database").health is Health.BAD:
        return False
    user = getattr(request, "user", None)
    return user is not None and user.is_staff and user.has_perm(PERMISSION)
