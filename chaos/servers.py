"""The embedded servers, as a run needs them: with an environment of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sample_project.embedded import Broker


class DialledBroker(Broker):
    """A broker that starts with variables of the environment, those of `chaos.dials` among them."""

    def __init__(self, environment: Mapping[str, str], settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self._environment = environment

    @property
    def queue_directory(self) -> Path:
        """Where the messages are."""
        return self.directory / "queue"

    def _command(self) -> Sequence[str | Path]:
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return ["/usr/bin/env", *variables, *super()._command()]
