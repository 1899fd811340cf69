from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys

import enode_django
from enode_django import exceptions
from enode_django.domain import refusals
from tests.meta.tree import ROOT

PUBLIC = {
    "AggregateId", "AggregateRoot", "CancelDeadline", "Command", "CommandContext", "CommandCrashed", "CommandResult",
    "CommandStatus", "Deadline", "DomainEvent", "DomainException", "Metadata", "ModelProjection", "MultiProjection",
    "ProcessManager", "Projection", "Retries", "Retry", "Unique", "ValueTaken", "VersionMismatch", "WaitFor",
    "aexecute_command", "applies", "aresult_of", "asend_command", "atry_command", "cancel_command", "command_handler",
    "current_metadata", "ends", "event_handler", "execute_command", "handles", "handles_crash", "metadata",
    "result_of", "send_command", "send_command_on_commit", "send_commands", "starts", "try_command", "upcasts",
}  # fmt: skip


def test_public_names_are_a_contract() -> None:
    assert set(enode_django.__all__) == PUBLIC
    assert enode_django.__all__ == sorted(enode_django.__all__)
    for name in PUBLIC:
        assert getattr(enode_django, name) is not None


def test_tab_completion_shows_the_public_names_before_they_are_imported() -> None:
    code = "import enode_django as e; print(*dir(e)); print(sorted(set(dir(e)) - set(vars(e))))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=240, check=True, text=True
    )
    shown, not_imported = done.stdout.splitlines()
    assert set(shown.split()) == {*PUBLIC, "__version__"}
    assert "'AggregateRoot'" in not_imported


def test_everything_imported_by_the_package_is_exported() -> None:
    tree = ast.parse((ROOT / "enode_django" / "__init__.py").read_text())
    places = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("enode_django.")
        for alias in node.names
    }
    assert set(places) == PUBLIC
    assert places == enode_django._MODULES  # the modules that they are imported from on use


def test_importing_the_package_imports_no_models() -> None:
    code = "import sys, enode_django; sys.exit('enode_django.models' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_error_page_draws_every_error_in_its_place() -> None:
    drawn = dict.fromkeys(re.findall(r"── (\w+)", exceptions.__doc__ or ""))
    defined = {
        name: cls
        for name, cls in {**vars(exceptions), **vars(refusals)}.items()
        if inspect.isclass(cls) and issubclass(cls, exceptions.EnodeError) and cls is not exceptions.EnodeError
    }
    assert set(drawn) == set(defined)
    parents: list[str] = ["EnodeError"]
    for line in (exceptions.__doc__ or "").splitlines():
        match = re.match(r"^([│ ├└]*)── (\w+)", line)
        if match is None:
            continue
        depth = (len(match[1]) + 3) // 4
        parents = [*parents[:depth], match[2]]
        assert parents[depth - 1] in {base.__name__ for base in defined[match[2]].__mro__[1:]}, line


def test_check_ids_are_unique_in_the_source() -> None:
    source = "".join(path.read_text() for path in (ROOT / "enode_django" / "checks").glob("*.py"))
    ids = re.findall(r'id="(enode_django\.[EW]\d{3})"', source)
    assert len(ids) >= 8
    assert len(ids) == len(set(ids))
