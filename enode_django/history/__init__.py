"""Time travel: what an aggregate was at a version, what changed between two, what led to what, and who knows of it.

Everything here reads. It asks the event store of the settings, in the calling thread and its connections, and blocks.
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
