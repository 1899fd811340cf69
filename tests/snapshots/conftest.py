from __future__ import annotations

import itertools
import linecache
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
    """Return a function from the source of a module to its class ``Cart``, as another process would have it."""
    numbers = itertools.count()

    def from_source(
        source: str, *, path: str = "domain.py", module: str = "shop.domain", is_readable: bool = True
    ) -> Any:
        made, text, path = ModuleType(module), BEGIN + source, f"{next(numbers)}/{path}"
        monkeypatch.setitem(sys.modules, module, made)
        if is_readable:
            monkeypatch.setitem(linecache.cache, path, (len(text), None, text.splitlines(keepends=True), path))
        exec(compile(text, path, "exec", dont_inherit=True), vars(made))
        return vars(made)["Cart"]

    return from_source
