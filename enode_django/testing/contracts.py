"""Contract suites for your own drivers: subclass a suite and define its fixture. They need pytest.

========================  ===================  ==================================================================
suite                     fixture              optional
========================  ===================  ==================================================================
`EventStoreContract`      ``store``            ``second_store``: that of another process; ``leave_thread()``
`SnapshotStoreContract`   ``snapshots``        ``leave_thread()``
`SharedStatesContract`    ``states``
`TransportContract`       ``transport``        ``another``: that of another process; ``trim_keeps_at_most``
`UniqueValuesContract`    ``values``           ``leave_thread()``
========================  ===================  ==================================================================

``leave_thread`` is called at the end of each thread that a test starts.
"""

from enode_django.testing.event_store_contract import EventStoreContract
from enode_django.testing.shared_states_contract import SharedStatesContract
from enode_django.testing.snapshot_store_contract import SnapshotStoreContract
from enode_django.testing.transport_contract import TransportContract
from enode_django.testing.unique_values_contract import UniqueValuesContract

__all__ = [
    "EventStoreContract",
    "SharedStatesContract",
    "SnapshotStoreContract",
    "TransportContract",
    "UniqueValuesContract",
]
