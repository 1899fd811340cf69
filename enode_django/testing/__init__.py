"""For users' tests: commands executed in the test's own thread and transaction, and given/when/then for aggregates.

`inline` runs handlers, store and answers for real, without queue and processes. `given` tests one aggregate with no
database at all. The contract suites hold drivers of stores and transports to their ports.
"""

from enode_django.testing.inline import inline
from enode_django.testing.scenario import Scenario, given

__all__ = ["Scenario", "given", "inline"]
