"""Jobs: batch work that is reported, can be cancelled, and runs once at a time."""

from enode_django.jobs.leases import request_cancel
from enode_django.jobs.running import RunningJob, running_job

__all__ = ["RunningJob", "request_cancel", "running_job"]
