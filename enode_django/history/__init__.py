"""Time travel: the state of an aggregate at a version, differences of states, causation, and progress of subscribers.

All functions only read. They query the event store of the settings over the calling thread's connections, and block.
"""

from enode_django.bus.results import stored_result
from enode_django.history.causation import Causation, Limits, causation
from enode_django.history.differences import Change, differences
from enode_django.history.reaching import Reached, reached
from enode_django.history.states import State, difference, state_at
from enode_django.history.steps import Happened, Step
from enode_django.repository.loading import events_of, replay_records

__all__ = [
    "Causation",
    "Change",
    "Happened",
    "Limits",
    "Reached",
    "State",
    "Step",
    "causation",
    "difference",
    "differences",
    "events_of",
    "reached",
    "replay_records",
    "state_at",
    "stored_result",
]
