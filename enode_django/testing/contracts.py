"""Contract suites for drivers of your own: subclass a suite, and give it the fixture that it names. They need pytest.

========================  ===================  ==================================================================
suite                     fixture              beside it, if the driver has more to show
========================  ===================  ==================================================================
`EventStoreContract`      ``store``            ``second_store``: as another process has it; ``leave_thread()``
`SnapshotStoreContract`   ``snapshots``        ``leave_thread()``
`SharedStatesContract`    ``states``
`TransportContract`       ``transport``        ``another``: as another process has it; ``trim_keeps_at_most``
========================  ===================  ==================================================================

``leave_thread`` is called at the end of each thread that a test has started.
"""

from enode_django.testing.event_store_contract import EventStoreContract
from enode_django.testing.shared_states_contract import SharedStatesContract
from enode_django.testing.snapshot_store_contract import SnapshotStoreContract
from enode_django.testing.transport_contract import TransportContract

__all__ = ["EventStoreContract", "SharedStatesContract", "SnapshotStoreContract", "TransportContract"]
