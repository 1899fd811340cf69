"""``manage.py banksample``."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from rich.console import Console

from sample_project.bank.demo.run import Demo, new_workload
from sample_project.bank.models import AccountSummary

USER = "demo"
SMALL = {"accounts": 50, "commands": 300, "producers": 1, "transfers": 50}


class Command(BaseCommand):
    help = "Shows the sample's pages, with a user, accounts and workers, until Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("addrport", nargs="?", default="127.0.0.1:8000", help="port, or address:port, to serve at")

    def handle(self, *, addrport: str, **options: object) -> None:
        if not User.objects.filter(username=USER).exists():
            User.objects.create_superuser(USER, password=USER)
        if not AccountSummary.objects.exists():
            Demo(new_workload(**SMALL), processes=1, console=Console(highlight=False)).run()
        address = f"127.0.0.1:{addrport}" if addrport.isdigit() else addrport
        self.stdout.write(f"\nthe pages: http://{address}/ (user {USER!r}, password {USER!r}); Ctrl-C ends\n")
        self.stdout.flush()
        os.environ["DEBUG"] = "1"  # so that the web server serves the static files
        os.execv(sys.executable, [sys.executable, sys.argv[0], "enodedev", address])  # noqa: S606
