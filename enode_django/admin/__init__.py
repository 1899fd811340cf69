"""Pages of the admin: event store, dead letters, subscribers, parked and erased events, process states, jobs,
rebuilds, topics, dashboard and operator actions. `ReadModelAdmin` is for the read models of a project.

Django imports the admin classes in every process, also for `manage.py check` and `migrate`. So they import the runtime,
histories, rebuilds and the message queue only when a page is requested; comments there say "see the package".
"""

from django.apps import apps

if apps.is_installed("django.contrib.admin"):  # without the admin, filters of templates import this package, too
    from enode_django.admin.auditing import OperatorActionAdmin
    from enode_django.admin.dashboard import DashboardAdmin
    from enode_django.admin.dead_letters import DeadLetterAdmin
    from enode_django.admin.erased import ErasedEventAdmin
    from enode_django.admin.jobs import JobAdmin
    from enode_django.admin.outbox import OutboxCommandAdmin, ScheduledCommandAdmin
    from enode_django.admin.parked import ParkedEventAdmin
    from enode_django.admin.process_states import ProcessStateAdmin
    from enode_django.admin.read_models import ReadModelAdmin
    from enode_django.admin.rebuilds import RebuildAdmin
    from enode_django.admin.streams import EventStreamAdmin
    from enode_django.admin.subscribers import SubscriberAdmin
    from enode_django.admin.topics import TopicAdmin
    from enode_django.admin.unique_values import UniqueValueAdmin

__all__ = [
    "DashboardAdmin",
    "DeadLetterAdmin",
    "ErasedEventAdmin",
    "EventStreamAdmin",
    "JobAdmin",
    "OperatorActionAdmin",
    "OutboxCommandAdmin",
    "ParkedEventAdmin",
    "ProcessStateAdmin",
    "ReadModelAdmin",
    "RebuildAdmin",
    "ScheduledCommandAdmin",
    "SubscriberAdmin",
    "TopicAdmin",
    "UniqueValueAdmin",
]
