"""Immediate mode: commands are handled, and their events followed, in the caller's process, without a queue.

It uses the same mailbox code, event store, subscribers and checkpoints as workers, so a project can switch between it
and a queue by its settings alone. See ``docs/howto/without-a-queue.md``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enode_django.bus.command_bus import CommandBus

__all__ = ["Immediate", "catch_up"]

logger = logging.getLogger("enode_django.immediate")

IN_MEMORY = (
    "no database is configured: aggregates and events are kept in the memory of this process, and are gone when it "
    'ends; to store them, name a PostgreSQL database in DATABASES, add "enode_django" to INSTALLED_APPS, and run '
    "manage.py migrate"
)


def catch_up() -> None:
    """Let subscribers handle the events that ended processes left unhandled, and retry all parked aggregates that are
    due. Blocks until everything is done; commands do the same for about a second. In other modes it does nothing.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        catch_up()
    """
    from enode_django.immediate.bus import ImmediateCommandBus
    from enode_django.runtime import current_bus

    bus = current_bus()
    if isinstance(bus, ImmediateCommandBus):
        bus.catch_up()


class Immediate:
    """A ``BACKEND`` of ``ENODE["QUEUE"]`` instead of a transport. It takes no ``LOCATION`` and no ``OPTIONS``.

    For example::

        ENODE = {"QUEUE": {"BACKEND": "enode_django.immediate.Immediate"}}
    """

    @staticmethod
    def make_bus() -> CommandBus:
        """Return the bus of a process. It uses the event store of the settings; without a configured database it logs a
        warning and stores in memory."""
        from enode_django.conf import keeps_in_memory
        from enode_django.immediate.bus import ImmediateCommandBus
        from enode_django.immediate.following import DatabaseSubscribers
        from enode_django.immediate.memory import MemorySubscribers
        from enode_django.runtime import make_store

        if keeps_in_memory():
            logger.warning(IN_MEMORY)
            return ImmediateCommandBus(make_store(), MemorySubscribers)
        return ImmediateCommandBus(make_store(), DatabaseSubscribers)
