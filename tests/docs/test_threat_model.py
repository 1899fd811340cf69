"""The page on threats names every permission that changes or shows something."""

from __future__ import annotations

from django.apps import apps

from enode_django.equeue.broker.access import Role
from tests.docs.pages import DOCS, code_of

PAGE = DOCS / "discussions" / "threat-model.md"
FAR_REACHING_VIEWS = {"view_eventstream", "view_payload", "view_processorreport"}


def permissions() -> set[str]:
    """Return the code names of the permissions of all models."""
    found: set[str] = set()
    for model in apps.get_app_config("enode_django").get_models():
        options = model._meta
        found |= {f"{action}_{options.model_name}" for action in options.default_permissions}
        found |= {name for name, _ in options.permissions}
    return found


def test_every_permission_but_those_to_see_names_is_explained() -> None:
    named = {name for cell in first_cells() for name in (code_of(part) for part in cell.split(", ")) if name}
    assert named >= {name for name in permissions() if not name.startswith("view_")}
    assert FAR_REACHING_VIEWS <= named <= permissions()


def first_cells() -> list[str]:
    text = PAGE.read_text(encoding="utf-8").split("\n## Permissions\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]


def test_every_role_of_the_broker_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{role}`" in text for role in Role)
