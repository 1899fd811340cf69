"""The state of a running project, part by part, for `manage.py enode status`, probes and the admin."""

from enode_django.monitoring.gathering import PARTS, gather
from enode_django.monitoring.lags import Lag, subscriber_lags
from enode_django.monitoring.parts import Health, Part, Problem, Status

__all__ = ["PARTS", "Health", "Lag", "Part", "Problem", "Status", "gather", "subscriber_lags"]
