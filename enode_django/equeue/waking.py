"""The thread that pulls, for the threads that may have to wake it."""

from __future__ import annotations

import threading

from enode_django.equeue.transport import AT_ONCE, Transport, WakesPulls


class PullingThread:
    """A pulling thread. It calls `wait_of` and `rest`; any thread calls `wake`."""

    def __init__(self, transport: Transport) -> None:
        self._wakes = transport if isinstance(transport, WakesPulls) else None
        self._thread: int | None = None
        self._woken = threading.Event()

    @property
    def can_be_woken(self) -> bool:
        """Return False if the transport cannot end a pull: pulls then have to be short."""
        return self._wakes is not None

    def wake(self) -> None:
        """End the pull or the rest that is under way; without one, the next one does not wait."""
        self._woken.set()  # first, so that a pull that has not begun yet finds it
        if self._wakes is not None and self._thread is not None:
            self._wakes.wake(self._thread)

    def wait_of(self, wait: float) -> float:
        """Return the ``wait`` of the next pull: `AT_ONCE` if this thread was woken since the last one."""
        self._thread = threading.get_ident()
        was_woken = self._woken.is_set()
        self._woken.clear()
        return AT_ONCE if was_woken else max(wait, AT_ONCE)

    def rest(self, seconds: float) -> None:
        """Wait up to ``seconds``, or until woken, instead of a pull without queues."""
        self._woken.wait(seconds)
        self._woken.clear()
