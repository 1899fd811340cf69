from __future__ import annotations

from typing import Any

import pytest

from enode_django.exceptions import DefinitionError
from enode_django.testing import given
from tests.races.counting import Counter, Created


def test_what_is_no_event_and_no_command_is_refused() -> None:
    wrong: Any = Created
    with pytest.raises(DefinitionError, match=r"given\(\) takes domain events, got <class .*Created'>"):
        given(Counter, "x", wrong)
    wrong = Created()
    with pytest.raises(DefinitionError, match=r"when\(\) takes a command, got Created\(\)"):
        given(Counter, "x").when(wrong)
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given(Counter, "x").then_nothing()
