"""What the page on operating says of permissions is so."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission

from tests.docs.blocks import blocks
from tests.docs.pages import DOCS

pytestmark = pytest.mark.django_db

PAGE = DOCS / "howto" / "operate.md"


def test_the_permissions_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`((?:view|add|change|delete)_\w+)`", PAGE.read_text()))
    known = Permission.objects.filter(content_type__app_label="enode_django").values_list("codename", flat=True)
    assert named >= {"add_job", "change_topic", "view_subscriber", "change_rebuild"}
    assert named <= set(known)


def test_the_group_of_the_page_may_what_it_says() -> None:
    (block,) = (block for block in blocks(PAGE) if block.language == "python")
    namespace: dict[str, object] = {}
    exec(compile(block.at_its_lines, str(PAGE), "exec"), namespace)
    granted = namespace["on_call"].permissions.values_list("codename", flat=True)  # type: ignore[attr-defined]
    assert sorted(granted) == sorted(namespace["may"])  # type: ignore[call-overload]
