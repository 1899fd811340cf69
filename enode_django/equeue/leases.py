"""The lease under which a handler's message was pulled."""

from __future__ import annotations

from contextvars import ContextVar

from enode_django.equeue.offsets import OffsetWindow
from enode_django.exceptions import QueueError

_window: ContextVar[OffsetWindow] = ContextVar("enode_window")


def lease_holds() -> bool:
    """Return True if no other consumer of the group can own the queue of the message that is being handled.

    For a handler of a `Consumer` that takes long: False may become True again, while the queue cannot be reached; if
    the queue was lost it stays False, and somebody else gets the message. With `Mode.BROADCASTING` nobody else has it.
    Raises `QueueError` if it is not called by a handler (or in its `contextvars` context).
    """
    window = _window.get(None)
    if window is None:
        raise QueueError("lease_holds() asks for the message that a handler is at; call it from a consumer's handler")
    return window.holds


def begin_handling(window: OffsetWindow) -> None:
    """Let `lease_holds` be about this window from now on, in the calling thread (which does nothing but handle)."""
    _window.set(window)
