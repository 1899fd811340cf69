"""Helpers for users' tests: commands executed in the test's own thread and transaction, and given/when/then.

`inline` runs handlers, store and answers for real, without queue and processes. `given` tests one aggregate, process
manager or `ModelProjection` with no database at all. `restore_event` reads a `StoredEvent` as it may lie in
the store. `enode_django.testing.contracts` holds drivers of stores and transports to their ports, and
`enode_django.pytest_plugin` has fixtures.
"""

from enode_django.serialization.codec import StoredEvent, restore_event
from enode_django.testing.inline import InlineCommandBus, inline
from enode_django.testing.process_scenario import ProcessScenario
from enode_django.testing.row_scenario import RowScenario
from enode_django.testing.scenario import Scenario, given

__all__ = [
    "InlineCommandBus",
    "ProcessScenario",
    "RowScenario",
    "Scenario",
    "StoredEvent",
    "given",
    "inline",
    "restore_event",
]
