"""Django signals of the workers. Receivers are called in the worker, in ``inline()``, and without a queue in the
sender's thread.

Django logs a receiver's error, which has no other effect. A slow receiver delays the thread that calls it. A worker
that dies may omit a signal, and a worker that repeats a command sends its signal again: work that must happen for an
event belongs in a subscriber.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["aggregate_parked", "command_finished"]

command_finished = Signal()
"""Sent when the outcome of a command is durable. The sender is the class of the command; arguments are ``command``,
``result`` (a `CommandResult`) and ``metadata``.

For example::

    @receiver(command_finished, sender=OpenAccount)
    def tell(command: OpenAccount, result: CommandResult, **others: Any) -> None:
        print(f"{command.owner}: {result.status.value}")
"""

aggregate_parked = Signal()
"""Sent when a subscriber has parked an aggregate. The sender is the class of the subscriber; arguments are
``subscriber`` (its name), ``aggregate_root_id`` and ``error`` (the handler's exception).

For example::

    @receiver(aggregate_parked)
    def tell(subscriber: str, aggregate_root_id: str, error: Exception, **others: Any) -> None:
        mail_admins(f"{subscriber} has parked {aggregate_root_id}", str(error))
"""
