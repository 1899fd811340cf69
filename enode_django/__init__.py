"""CQRS and event sourcing for Django: aggregates in memory, events stored in batches, commands that take effect once.

Everything an application imports is here, except what needs Django's models (``enode_django.models``) and the testing
kit (``enode_django.testing``).

Each name is imported when it is first used, so that a part of the package, such as `enode_django.equeue` or the pytest
plugin, is cheap to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enode_django.bus.results import CommandResult, CommandStatus, WaitFor
    from enode_django.client import (
        aexecute_command,
        aresult_of,
        asend_command,
        atry_command,
        cancel_command,
        execute_command,
        result_of,
        send_command,
        send_command_on_commit,
        send_commands,
        try_command,
    )
    from enode_django.commanding.context import CommandContext
    from enode_django.domain.aggregate import AggregateRoot, applies
    from enode_django.domain.handlers import command_handler
    from enode_django.domain.messages import Command, DomainEvent
    from enode_django.domain.metadata import Metadata, current_metadata, metadata
    from enode_django.domain.refusals import DomainException, ValueTaken, VersionMismatch
    from enode_django.domain.unique import Unique
    from enode_django.eventing.deadlines import CancelDeadline, Deadline
    from enode_django.eventing.event_handlers import event_handler
    from enode_django.eventing.marks import ends, handles, starts
    from enode_django.eventing.multi_projections import MultiProjection
    from enode_django.eventing.process_managers import ProcessManager, handles_crash
    from enode_django.eventing.projections import ModelProjection, Projection
    from enode_django.eventing.retry_policy import Retries
    from enode_django.exceptions import Retry
    from enode_django.ids import AggregateId
    from enode_django.serialization.crashes import CommandCrashed
    from enode_django.serialization.upcasting import upcasts

__all__ = [
    "AggregateId",
    "AggregateRoot",
    "CancelDeadline",
    "Command",
    "CommandContext",
    "CommandCrashed",
    "CommandResult",
    "CommandStatus",
    "Deadline",
    "DomainEvent",
    "DomainException",
    "Metadata",
    "ModelProjection",
    "MultiProjection",
    "ProcessManager",
    "Projection",
    "Retries",
    "Retry",
    "Unique",
    "ValueTaken",
    "VersionMismatch",
    "WaitFor",
    "aexecute_command",
    "applies",
    "aresult_of",
    "asend_command",
    "atry_command",
    "cancel_command",
    "command_handler",
    "current_metadata",
    "ends",
    "event_handler",
    "execute_command",
    "handles",
    "handles_crash",
    "metadata",
    "result_of",
    "send_command",
    "send_command_on_commit",
    "send_commands",
    "starts",
    "try_command",
    "upcasts",
]

__version__ = "0.1.0"

_PLACES = {
    "client": (
        "aexecute_command",
        "aresult_of",
        "asend_command",
        "atry_command",
        "cancel_command",
        "execute_command",
        "result_of",
        "send_command",
        "send_command_on_commit",
        "send_commands",
        "try_command",
    ),
    "commanding.context": ("CommandContext",),
    "serialization.crashes": ("CommandCrashed",),
    "bus.results": ("CommandResult", "CommandStatus", "WaitFor"),
    "domain.aggregate": ("AggregateRoot", "applies"),
    "domain.handlers": ("command_handler",),
    "domain.messages": ("Command", "DomainEvent"),
    "domain.metadata": ("Metadata", "current_metadata", "metadata"),
    "domain.refusals": ("DomainException", "ValueTaken", "VersionMismatch"),
    "domain.unique": ("Unique",),
    "eventing.deadlines": ("CancelDeadline", "Deadline"),
    "eventing.event_handlers": ("event_handler",),
    "eventing.marks": ("ends", "handles", "starts"),
    "eventing.process_managers": ("ProcessManager", "handles_crash"),
    "eventing.multi_projections": ("MultiProjection",),
    "eventing.projections": ("ModelProjection", "Projection"),
    "eventing.retry_policy": ("Retries",),
    "exceptions": ("Retry",),
    "ids": ("AggregateId",),
    "serialization.upcasting": ("upcasts",),
}
_MODULES = {name: f"{__name__}.{place}" for place, names in _PLACES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Return the public names, whether they have been imported yet or not."""
        return [*__all__, "__version__"]
