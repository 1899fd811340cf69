"""Writing anew what may be in the kernel's memory only, though it looks like the disk's.

When a sync fails, the kernel takes the pages for clean: the next sync says that all is well, and a crash of the machine
takes them away. So what a start finds behind the last sync that is known to have worked is written to new files.
"""

from __future__ import annotations

from collections.abc import Collection

from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.scan import Found, scan
from enode_django.exceptions import StorageFailed


def renew_unsafe(log: MessageLog, safe: int, damaged: Collection[int]) -> None:
    """Make the log safe behind ``safe``, up to where a checkpoint or a later batch says that it is. ``damaged`` are the
    positions that were passed over when the log was read.

    For opening, before anything is appended. Raises `StorageFailed`, also if what was read before is not there any
    more.
    """
    chunk = next((chunk for chunk in log.chunks if chunk.end > safe), None)
    if chunk is None:
        return
    safe = max(safe, chunk.start)
    if any(position >= safe for position in damaged):
        safe = chunk.start  # whether damage is a hole is told by the pages of its file: they stay where they are in it
    log.renew(safe)
    end = safe
    for item in scan(log, safe):
        if isinstance(item, Found) or item.position in damaged:
            end = item.end
    if end < log.end:
        raise StorageFailed(f"messages at position {end} of the log are not read as before; look after the disk")
