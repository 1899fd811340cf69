"""Rewrite data that may be in the kernel's memory only, though it reads as if it were on the disk.

When a sync fails, the kernel marks the pages as clean: the next sync reports success, and a crash of the machine loses
the pages. So a start writes everything behind the last sync that is known to have worked to new files.
"""

from __future__ import annotations

from collections.abc import Collection

from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.scan import Found, scan
from enode_django.exceptions import StorageFailed


def renew_unsafe(log: MessageLog, safe: int, damaged: Collection[int]) -> None:
    """Make the log safe behind ``safe``, up to where a checkpoint or a later batch says that it is. ``damaged`` are the
    positions that were skipped when the log was read.

    Called while opening, before the first append. Raises `StorageFailed`, also if what was read before is missing
    afterwards.
    """
    chunk = next((chunk for chunk in log.chunks if chunk.end > safe), None)
    if chunk is None:
        return
    start = max(safe, chunk.start)
    if any(position >= start for position in damaged):
        start = chunk.start  # the pages of the file tell damage from a hole: they must not move within it
    log.renew(start)
    end = start
    for item in scan(log, start, safe):
        if isinstance(item, Found) or item.position in damaged:
            end = item.end
    if end < log.end:
        raise StorageFailed(f"messages at position {end} of the log are not read as before; look after the disk")
