"""A projection that was removed from the code leaves nothing of its rebuilds behind."""

from __future__ import annotations

from contextlib import closing

from django.core.management import call_command

from enode_django.conf import conf
from enode_django.eventing.registry import subscribers
from enode_django.models import Checkpoint, ProjectionGeneration, Rebuild
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.target import Target
from enode_django.runtime import make_transport
from tests.following.harness import Harness
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balances, Posting, Postings
from tests.rebuilding.histories import follow, nothing, some_history


def test_a_forgotten_projection_leaves_no_schema_behind(postings: Harness, redis_url: str) -> None:
    some_history(postings, "a", "b")
    follow()
    rebuild(Postings.name, InProcess(), nothing)
    rebuild(Balances.name, InProcess(), nothing)
    Target.of(Postings.name).begin()
    assert len(schemas()) == 2
    with closing(make_transport()) as transport:
        transport.create_topic(conf().SUBSCRIBERS.TOPIC, 1)
    with subscribers.only(Balances):
        call_command("enode", "forgetsubscriber", Postings.name, verbosity=0)
    assert schemas() == [Target.of(Balances.name).shadow(0).schema]
    for model in (Checkpoint, ProjectionGeneration, Rebuild):
        assert not model._base_manager.filter(subscriber=Postings.name).exists()
    assert Posting.objects.count() == 4
    assert Target.of(Balances.name).generation() == 1
