"""Every public name has a docstring, those that a project calls or derives from have an example, and these run."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests import warm
from tests.docs.docstrings import Public, public_names
from tests.meta.tree import ROOT
from tests.template import migrated_database

EXEMPLIFIED = [
    *("", ".forms", ".views", ".serializers", ".ids", ".middleware", ".signals", ".routers", ".operations", ".conf"),
    *(".testing", ".testing.contracts", ".history", ".monitoring", ".runtime", ".immediate", ".jobs", ".batch"),
    *(".tasks", ".concurrency.stopping", ".spark.session", ".spark.source", ".spark.archive_reading"),
    *(".spark.batches", ".spark.horizons", ".eventstore.memory", ".eventstore.postgres", ".repository.store"),
    *(".repository.states", ".equeue.producer", ".equeue.subscribing", ".equeue.administration"),
    *(".equeue.dead_letters", ".equeue.transports.memory", ".equeue.transports.broker"),
    *(".equeue.transports.redis_streams", ".equeue.broker.options", ".equeue.broker.server"),
]
"""The modules whose names have examples."""
PLAIN = {
    "enode_django.testing": {"StoredEvent"},
    "enode_django.history": {"Causation", "Change", "Happened", "Limits", "Reached", "State", "Step"},
    "enode_django.monitoring": {"PARTS", "Health", "Lag", "Part", "Problem", "Status"},
    "enode_django.repository.store": {"Snapshot", "SnapshotStore", "SnapshotVersion"},
    "enode_django.repository.states": {"SharedStates"},
    "enode_django.equeue.subscribing": {"Limits", "Mode", "Order", "Start"},
    "enode_django.equeue.administration": {
        *("GroupInfo", "OffsetMove", "PeekedMessage", "ProducerInfo", "QueueShare", "TopicInfo"),
    },
    "enode_django.equeue.dead_letters": {"DeadLetter"},
}
"""Names in these modules that are values or protocols: they need no example."""
COMPILED = {
    "enode_django.equeue.administration.back_up": "a broker",
    "enode_django.equeue.administration.broker_figures": "a broker",
    "enode_django.equeue.administration.mend": "Redis",
    "enode_django.equeue.broker.server.run": "a process of its own, up to a signal",
    "enode_django.spark.archive_reading.archived_events": "Spark",
    "enode_django.spark.batches.records_of": "Spark",
    "enode_django.spark.horizons.horizon_of": "Spark",
    "enode_django.spark.session.spark_session": "Spark",
    "enode_django.spark.source.events": "Spark",
    "enode_django.tasks.build_snapshots": "Celery",
    "enode_django.tasks.export_events": "Celery",
    "enode_django.tasks.rebuild_projection": "Celery",
    "enode_django.tasks.run_job": "Celery",
    "enode_django.tasks.undo_rebuild": "Celery",
}
"""Names whose examples do not run here, with what they would need."""
WITH_DATABASE = {
    "enode_django.asend_command",
    "enode_django.cancel_command",
    "enode_django.eventstore.postgres.PostgresEventStore",
    "enode_django.history.causation",
    "enode_django.history.reached",
    "enode_django.jobs.RunningJob",
    "enode_django.jobs.request_cancel",
    "enode_django.jobs.running_job",
    "enode_django.monitoring.subscriber_lags",
    "enode_django.runtime.replay",
    "enode_django.send_command",
    "enode_django.send_command_on_commit",
    "enode_django.serializers.receive",
}
"""Names whose examples run in a database. All others run in memory."""
LONGEST = 10
"""Lines with code."""

SETTINGS = """\
import os

from sample_project.settings import *

DATABASES = {}
DATABASE_ROUTERS = []
if os.environ.get("EXAMPLES_NEED_DATABASE"):
    template = os.environ.get("ENODE_TESTS_MIGRATED")
    test = {"NAME": f"test_docstrings_{os.getpid()}", "TEMPLATE": template, "MIGRATE": template is None}
    DATABASES["default"] = {**database_from_url(DATABASE_URL), "TEST": test}
ENODE = {"QUEUE": {"BACKEND": "enode_django.immediate.Immediate"}}
"""


def needs_example(public: Public) -> bool:
    return public.module.removeprefix("enode_django") in EXEMPLIFIED and public.name not in PLAIN.get(public.module, ())


def test_every_public_name_has_a_docstring() -> None:
    assert len(public_names()) > 200
    tree = (ROOT / "enode_django" / "exceptions.py").read_text().split('"""')[1]
    described = {line.strip("├└│─ ").split()[0] for line in tree.splitlines() if line.strip("├└│─ ")}
    missing = [one for one in public_names() if not one.docstring.strip()]
    assert [str(one) for one in missing if one.module != "enode_django.exceptions" or one.name not in described] == []


def test_names_that_a_project_calls_or_derives_from_have_an_example() -> None:
    assert set(EXEMPLIFIED) <= {one.module.removeprefix("enode_django") for one in public_names()}
    assert [str(one) for one in public_names() if needs_example(one) and not one.examples] == []


def test_lists_of_names_are_true() -> None:
    plain = {f"{module}.{name}" for module, names in PLAIN.items() for name in names}
    assert plain.union(COMPILED, WITH_DATABASE) <= {str(one) for one in public_names()}
    assert WITH_DATABASE.isdisjoint(COMPILED)


def test_examples_are_python_and_short() -> None:
    for public in public_names():
        for example in public.examples:
            ast.parse(example.at_its_lines, str(public.path))
            assert len([line for line in example.text.splitlines() if line.strip()]) <= LONGEST, str(public)


def failures(directory: Path, names: list[str], need_database: str) -> Mapping[str, str]:
    """Run the examples of these names. Return the tracebacks of those that fail, by name."""
    (directory / "docstring_settings.py").write_text(SETTINGS)
    environment = {
        **os.environ,
        **migrated_database(),
        "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "docstring_settings",
        "EXAMPLES_NEED_DATABASE": need_database,
    }
    done = warm.run(["-m", "tests.docs.run_docstrings", *names], cwd=directory, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Mapping[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {*names}
    return {name: traceback for name, traceback in found.items() if traceback}


def test_examples_run_in_memory(tmp_path: Path) -> None:
    examples = {str(one) for one in public_names() if one.examples} - WITH_DATABASE.union(COMPILED)
    failed = failures(tmp_path, sorted(examples), "")
    assert not failed, "\n".join(failed.values())


def test_examples_run_in_a_database(tmp_path: Path, postgres_url: str) -> None:
    failed = failures(tmp_path, sorted(WITH_DATABASE), "1")
    assert not failed, "\n".join(failed.values())
