"""Answers to several inboxes, of which some cannot be reached."""

from __future__ import annotations

from enode_django.equeue.transports.base import Transport
from enode_django.exceptions import PartlyUnavailable


def deliver(transport: Transport, left: list[tuple[str, bytes]]) -> None:
    """Send (address, body) pairs. Raises what the transport raises; what was delivered is removed from ``left`` then,
    so that the call can be made again."""
    try:
        transport.reply(left)
    except PartlyUnavailable as some:
        left[:] = [reply for place, reply in enumerate(left) if place not in some.answers]
        raise
