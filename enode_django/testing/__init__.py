"""Helpers for users' tests: commands executed in the test's own thread and transaction, and given/when/then.

`inline` runs the real handlers, store and answers, without queue and processes. `given` tests one aggregate, process
manager, `ModelProjection` or `MultiProjection` without a database. `restore_event` makes an event from a `StoredEvent`,
such as one of an older version. `enode_django.testing.contracts` has test suites for drivers of stores and transports,
and `enode_django.pytest_plugin` has fixtures.
"""

from enode_django.serialization.codec import StoredEvent, restore_event
from enode_django.testing.inline import InlineCommandBus, inline
from enode_django.testing.process_scenario import ProcessScenario
from enode_django.testing.row_scenario import RowScenario
from enode_django.testing.rows_scenario import RowsScenario
from enode_django.testing.scenario import Scenario, given

__all__ = [
    "InlineCommandBus",
    "ProcessScenario",
    "RowScenario",
    "RowsScenario",
    "Scenario",
    "StoredEvent",
    "given",
    "inline",
    "restore_event",
]
