from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.domain import declarations
from enode_django.serialization.registry import types


@pytest.fixture
def undeclared() -> Iterator[None]:
    """Forget the wrong declarations of the test. The system checks of other tests look at every class."""
    types.index()
    before = len(declarations._declared)
    yield
    bad = declarations._declared[before:]
    del declarations._declared[before:]
    types._indexed = min(types._indexed, before)
    types._unnamed = [cls for cls in types._unnamed if cls not in bad]
    for cls in bad:
        types._names.pop(cls, None)
        for classes in types._classes.values():
            for name in [name for name, known in classes.items() if known is cls]:
                del classes[name]
    types._duplicates = {name: pair for name, pair in types._duplicates.items() if not set(pair) & set(bad)}
