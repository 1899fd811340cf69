"""Pages of the admin: the event store, what is parked, batch jobs."""

from enode_django.admin.dashboard import DashboardAdmin
from enode_django.admin.jobs import JobAdmin
from enode_django.admin.parked import ParkedEventAdmin
from enode_django.admin.streams import EventStreamAdmin

__all__ = ["DashboardAdmin", "EventStreamAdmin", "JobAdmin", "ParkedEventAdmin"]
