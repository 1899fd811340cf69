from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.unit.conftest import undeclared

__all__ = ["undeclared"]

Define = Callable[..., Any]

BEGIN = """\
from __future__ import annotations
import dataclasses
import enum
from collections import defaultdict
from decimal import Decimal
from functools import cached_property, wraps
from enode_django import AggregateRoot, DomainEvent, applies, upcasts
"""


@pytest.fixture
def define(undeclared: None, monkeypatch: pytest.MonkeyPatch) -> Define:
    """From the source of a module to its class ``Cart``, as another process would have it."""
    numbers = itertools.count()

    def from_source(source: str, *, path: str = "domain.py", module: str = "shop.domain") -> Any:
        made = ModuleType(module)
        monkeypatch.setitem(sys.modules, module, made)
        next(numbers)
        exec(compile(BEGIN + source, path, "exec", dont_inherit=True), vars(made))
        return vars(made)["Cart"]

    return from_source
