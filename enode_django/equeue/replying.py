"""Deliver answers to several inboxes, even if some are unreachable."""

from __future__ import annotations

import logging

from enode_django.equeue.transport import Transport
from enode_django.exceptions import BadRequest, MalformedFrame, PartlyUnavailable, shown

logger = logging.getLogger("enode_django.equeue")


def deliver(transport: Transport, left: list[tuple[str, bytes]]) -> None:
    """Send (address, body) pairs. If the transport raises, remove the delivered pairs from ``left``, so that the call
    can be repeated. An answer that the transport refuses for good (a bad address, a body that is too large) is logged
    and dropped: its address came from a message, and must not hold up the other answers."""
    try:
        transport.reply(left)
    except PartlyUnavailable as some:
        left[:] = [reply for place, reply in enumerate(left) if place not in some.answers]
        raise
    except (BadRequest, MalformedFrame) as error:
        if len(left) > 1:
            _deliver_halves(transport, left)
        else:
            for address, body in left:
                logger.error("an answer of %d bytes for %s is dropped: %s", len(body), shown(address), error)


def _deliver_halves(transport: Transport, left: list[tuple[str, bytes]]) -> None:
    middle = len(left) // 2
    first, second = left[:middle], left[middle:]
    for half, rest in ((first, second), (second, [])):
        try:
            deliver(transport, half)
        except PartlyUnavailable:
            left[:] = [*half, *rest]
            raise
        left[:] = rest
