"""Pages of the admin: event store, dead letters, subscribers and what they have parked, jobs and rebuilds, queue.

`ReadModelAdmin` is for the read models of a project.

Django imports the admin classes in every process, for `manage.py check` and `migrate`, too. So they import what only
their pages need when a page is asked for: the runtime, histories, rebuilds and the queue are none of it before.
"""

from django.apps import apps

if apps.is_installed(
    "django.contrib.admin"
):  # else this is imported, too: by filters of templates, which Django checks
    from enode_django.admin.auditing import OperatorActionAdmin
    from enode_django.admin.dashboard import DashboardAdmin
    from enode_django.admin.dead_letters import DeadLetterAdmin
    from enode_django.admin.erased import ErasedEventAdmin
    from enode_django.admin.jobs import JobAdmin
    from enode_django.admin.parked import ParkedEventAdmin
    from enode_django.admin.read_models import ReadModelAdmin
    from enode_django.admin.rebuilds import RebuildAdmin
    from enode_django.admin.streams import EventStreamAdmin
    from enode_django.admin.subscribers import SubscriberAdmin
    from enode_django.admin.topics import TopicAdmin

__all__ = [
    "DashboardAdmin",
    "DeadLetterAdmin",
    "ErasedEventAdmin",
    "EventStreamAdmin",
    "JobAdmin",
    "OperatorActionAdmin",
    "ParkedEventAdmin",
    "ReadModelAdmin",
    "RebuildAdmin",
    "SubscriberAdmin",
    "TopicAdmin",
]
