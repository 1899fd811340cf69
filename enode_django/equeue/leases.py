"""The lease under which a handler's message was pulled."""

from __future__ import annotations

from contextvars import ContextVar

from enode_django.equeue.offsets import OffsetWindow
from enode_django.exceptions import QueueError

_window: ContextVar[OffsetWindow] = ContextVar("enode_window")


def lease_holds() -> bool:
    r"""Return True if no other consumer of the group can own the queue of the message that is being handled.

    For long-running handlers of a `Consumer`. False may become True again when the queue was only unreachable for a
    time; when the queue was lost it stays False, and another consumer gets the message. With `Mode.BROADCASTING` no
    other consumer shares the queue. Raises `QueueError` outside of a handler (or its `contextvars` context).

    For example::

        def print_pages(message: Message) -> None:
            for page in message.body.split(b"\f"):
                if not lease_holds():
                    return  # another consumer begins with the message again
                print(page)
    """
    window = _window.get(None)
    if window is None:
        raise QueueError("lease_holds() asks for the message that a handler is at; call it from a consumer's handler")
    return window.holds


def begin_handling(window: OffsetWindow) -> None:
    """Let `lease_holds` use this window from now on, in the calling thread (which does nothing but handle)."""
    _window.set(window)
