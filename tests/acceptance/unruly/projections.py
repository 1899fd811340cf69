from __future__ import annotations

import os
from pathlib import Path

from enode_django import Projection, handles
from sample_project.bank.domain import AccountOpened, Deposited
from tests.acceptance.unruly.models import Cover, Page, Remark


class Remarks(Projection):
    """With a file ``changed`` in ``ACCEPTANCE_DIRECTORY`` its code is another one."""

    models = (Remark,)
    aggregate_field = "account"

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> None:
        is_changed = Path(os.environ["ACCEPTANCE_DIRECTORY"], "changed").exists()
        text = event.owner.upper() if is_changed else event.owner
        Remark.objects.create(account=event.aggregate_root_id, text=text)


class Pages(Projection):
    """Writes covers, too, and does not say so."""

    models = (Page,)
    aggregate_field = "account"

    @handles(Deposited)
    def deposited(self, event: Deposited) -> None:
        Page.objects.create(account=event.aggregate_root_id, amount=event.amount)
        cover, _ = Cover.objects.get_or_create(account=event.aggregate_root_id)
        cover.pages += 1
        cover.save()
