from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.test import override_settings

from enode_django.checks.api import check_api


@pytest.mark.parametrize(
    ("api", "ids"),
    [
        ({}, []),
        ({"COMMANDS": ["bank.Deposit"]}, ["E060"]),
        ({"COMMANDS": {"bank.Deposit": "bank.view"}}, ["E060"]),
        ({"COMMANDS": {"bank.Deposit": ["rest_framework.permissions.IsNobody"]}}, ["E060"]),
        ({"COMMANDS": {"bank.Deposti": []}}, ["E061"]),
        ({"COMMANDS": {"bnak.*": []}}, ["E061"]),
        ({"COMMANDS": {"sessions.*": []}}, []),  # an installed app that has no command yet
        ({"COMMANDS": {"bank.Deposit": ["rest_framework.permissions.IsAuthenticated"], "bank.*": ["bank.view"]}}, []),
        ({"COMMANDS": {"*": None}}, []),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_found(api: dict[str, Any], ids: list[str]) -> None:
    with override_settings(ENODE={**settings.ENODE, "API": api}):
        assert [message.id for message in check_api(None)] == [f"enode_django.{id}" for id in ids]
        assert [str(found.id) for found in run_checks() if str(found.id)[-4:] in ("E060", "E061")] == [
            f"enode_django.{id}" for id in ids
        ]
