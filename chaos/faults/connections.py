"""Network faults between processes and the queue, made by the proxies: connections are reset, delayed or silenced."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.faults.base import Fault
from chaos.names import Setup
from chaos.proxy import Proxy

LONGEST_DELAY = 0.2


class _WayFault(Fault):
    """A fault of the connections of a host or of the clients to the queue, or of all to a node: "way NAME"."""

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"way {name}" for name in setup.ways]

    @property
    def _proxy(self) -> Proxy:
        return self.world.services.ways[self.planned.target.removeprefix("way ")]


class CutConnections(_WayFault):
    name = "cut-connections"
    weight = 2.0

    def begin(self) -> str:
        return f"reset {self._proxy.cut()} connections"


class DelayConnections(_WayFault):
    name = "delay-connections"
    shortest, longest = 1.0, 6.0

    def begin(self) -> str:
        self._proxy.delay = LONGEST_DELAY * self.planned.share
        return f"kept every piece back for {1000 * self._proxy.delay:.0f} ms"

    def end(self) -> None:
        self._proxy.resume()


class SilenceConnections(_WayFault):
    """Connections stay open without any data, sometimes for longer than the timeout and the lease."""

    name = "silence-connections"
    shortest, longest = 0.5, 7.0

    def begin(self) -> str:
        self._proxy.silence()
        return "let nothing through"

    def end(self) -> None:
        self._proxy.resume()


KINDS: Sequence[type[Fault]] = (CutConnections, DelayConnections, SilenceConnections)
