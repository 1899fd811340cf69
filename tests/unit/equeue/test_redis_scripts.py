"""Redis notices a function that is missing from a script only when the script comes to its call."""

from __future__ import annotations

import re

import pytest

from enode_django.equeue.redis import claim_scripts, scripts, topic_scripts
from enode_django.equeue.redis.scripts import HELPERS, Script

MODULES = (scripts, claim_scripts, topic_scripts)
SCRIPTS = {name: value for one in MODULES for name, value in vars(one).items() if isinstance(value, Script)}
OF_LUA = {"and", "function", "if", "in", "ipairs", "not", "or", "return", "tonumber", "type", "unpack"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_the_functions_that_it_calls_and_no_others(name: str) -> None:
    code = re.sub(r"--.*|'[^'\n]*'", "", SCRIPTS[name].text)
    defined = re.findall(r"local function (\w+)", code)
    called = set(re.findall(r"(?<![\w.])(\w+)\s*\(", re.sub(r"local function \w+", "function", code)))
    assert called - OF_LUA == set(defined)
    assert len(defined) == len(set(defined))


def test_every_helper_is_called_by_a_script() -> None:
    assert [name for name in HELPERS if not any(f"function {name}(" in one.text for one in SCRIPTS.values())] == []
