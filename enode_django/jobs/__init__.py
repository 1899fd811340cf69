"""Jobs: batch work that reports progress, can be cancelled, and runs one at a time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enode_django.jobs.leases import request_cancel
    from enode_django.jobs.running import RunningJob, running_job

__all__ = ["RunningJob", "request_cancel", "running_job"]


def __getattr__(name: str) -> Any:
    """Import a name at its first use: the admin needs only the leases."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'leases' if name == 'request_cancel' else 'running'}"), name)
