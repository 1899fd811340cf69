"""Check the options of a driver. Each function raises `ConfigurationError` for an unusable value."""

from __future__ import annotations

import math

from enode_django.exceptions import ConfigurationError, shown


def check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"the option {name} is {shown(value)}; give it a number of seconds above 0")


def check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise ConfigurationError(f"the option {name} is {shown(value)}; give it a whole number that is not below 0")


def check_function(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise ConfigurationError(f"the option {name} is {shown(value)}; give it a function, or None")


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """The error shows only the class of the value, which may be secret."""
    if not isinstance(value, kinds):
        raise ConfigurationError(f"the option {name} is of the class {type(value).__name__}; give it {wanted}")
