"""Screenshots of the pages of a real server with demo data: ``make screenshots``.

``python -m sample_project.screenshots`` needs PostgreSQL, Redis and Chromium. A missing page is reported and left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import django
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as NeverIdle

from sample_project.embedded_process import free_port

if TYPE_CHECKING:
    from playwright.sync_api import StorageState, ViewportSize

    from enode_django import Command

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / "docs" / "images" / "screenshots"
MAX_BYTES = 150_000
USER = "demo"
WIDE: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 780}
OWNERS = ("Ada", "Emmy", "Grace", "Hedy", "Katherine", "Sofia")
PACE = 0.05
UP_SECONDS = 60.0


class Shot(NamedTuple):
    """A screenshot. ``path`` may contain ``{account}``, the account with the longest history."""

    name: str
    path: str
    scheme: Literal["light", "dark"] = "light"
    viewport: ViewportSize = WIDE


STREAMS = "/admin/enode_django/eventstream/"
DASHBOARD = "/admin/enode_django/processorreport/"
SHOTS = (
    Shot("event-browser", STREAMS),
    Shot("event-browser-dark", STREAMS, "dark"),
    Shot("aggregate", STREAMS + "aggregates/{account}/"),
    Shot("aggregate-dark", STREAMS + "aggregates/{account}/", "dark"),
    Shot("dashboard", DASHBOARD),
    Shot("dashboard-dark", DASHBOARD, "dark"),
    Shot("dashboard-phone", DASHBOARD, viewport=PHONE),
    Shot("teller", "/teller/accounts/{account}/"),
    Shot("teller-dark", "/teller/accounts/{account}/", "dark"),
    Shot("teller-phone", "/teller/accounts/{account}/", viewport=PHONE),
)


def main() -> int:
    """Return the exit status: 1 if a page is missing or a screenshot is too large."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these pictures")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long customers come before, for the charts")
    options = parser.parse_args()
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium on the PATH; on Debian and Ubuntu: apt install chromium-headless-shell")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample_project.settings")
    os.environ["DEBUG"] = "1"  # so that runserver serves the static files
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright runs an event loop in this thread
    django.setup()
    shots = [shot for shot in SHOTS if not options.names or shot.name in options.names]
    with served() as server, customers() as account:
        time.sleep(options.seconds)
        problems = take(shots, server, account, chromium)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


# -- the server and its data --------------------------------------------------------------------------------------


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Run the sample with tables, a user, processors and a web server, and give the server's address."""
    if manage("migrate", "--verbosity=0").wait():
        raise SystemExit("the tables could not be made; the reason stands above")
    make_user()
    address = f"127.0.0.1:{free_port()}"
    processes = [manage("runprocessors", "--processes=1", "--verbosity=0"), manage("runserver", address, "--noreload")]
    try:
        wait_up(address)
        yield f"http://{address}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def manage(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, ROOT / "manage.py", *arguments], stdout=subprocess.DEVNULL)


def wait_up(address: str) -> None:
    """Block until the web server accepts connections. Raises `TimeoutError`."""
    host, port = address.split(":")
    deadline = time.monotonic() + UP_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no web server at {address} within {UP_SECONDS:g} s")
        time.sleep(0.1)


def make_user() -> None:
    from django.contrib.auth.models import User

    user, _ = User.objects.get_or_create(username=USER, defaults={"is_staff": True, "is_superuser": True})
    user.set_password(USER)
    user.save()


@contextlib.contextmanager
def customers() -> Iterator[str]:
    """Send commands of customers inside the block, and give the account with the longest history."""
    from enode_django import WaitFor, execute_command
    from enode_django.ids import new_id
    from enode_django.models import ProcessorReport
    from sample_project.bank.domain import OpenAccount

    accounts = {owner: new_id() for owner in OWNERS}
    for owner, id in accounts.items():
        opening = OpenAccount(id, owner=owner)
        execute_command(opening, wait_for=WaitFor.HANDLED, timeout=UP_SECONDS)
    ProcessorReport.objects.all().delete()  # from the time when the workers were starting
    stopping = threading.Event()
    thread = threading.Thread(target=come_and_go, args=(list(accounts.values()), stopping), daemon=True)
    thread.start()
    try:
        yield accounts[OWNERS[0]]
    finally:
        stopping.set()
        thread.join()


def come_and_go(accounts: list[str], stopping: threading.Event) -> None:
    from enode_django import metadata, send_commands
    from enode_django.ids import new_id

    for round in itertools.count():
        if stopping.wait(PACE):
            return
        with metadata(user_id="1", correlation_id=new_id()):
            send_commands(commands_of(round, accounts))


def commands_of(round: int, accounts: list[str]) -> list[Command]:
    """Return commands of all kinds, in some rounds also a transfer and a withdrawal that is refused."""
    from enode_django.ids import new_id
    from sample_project.bank.domain import Deposit, StartTransfer, Withdraw

    first, *others = accounts
    other = others[round % len(others)]
    commands: list[Command] = [
        Deposit(accounts[round % len(accounts)], amount=Decimal(20 + round % 7)),
        Deposit(first, amount=Decimal(1 + round % 3)),
        Withdraw(other, amount=Decimal(5)),
    ]
    if round % 20 == 10:
        commands.append(StartTransfer(new_id(), source=first, target=other, amount=Decimal(12)))
        commands.append(Withdraw(first, amount=Decimal(1_000_000)))
    return commands


# -- the pictures -------------------------------------------------------------------------------------------------


def take(shots: list[Shot], server: str, account: str, chromium: str) -> list[str]:
    """Take the screenshots, and return a text for each that is missing or too large."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work as root, as in a container.
        browser = playwright.chromium.launch(executable_path=chromium, chromium_sandbox=os.getuid() != 0)
        state = log_in(browser, server)
        problems = [take_one(browser, state, shot, server, account) for shot in shots]
        browser.close()
    return [problem for problem in problems if problem]


def log_in(browser: Browser, server: str) -> StorageState:
    """Log in and return the session's cookies."""
    page = browser.new_page()
    page.goto(f"{server}/admin/login/?next=/admin/")
    page.fill("input[name=username]", USER)
    page.fill("input[name=password]", USER)
    page.click("input[type=submit]")
    page.wait_for_url(f"{server}/admin/")
    state = page.context.storage_state()
    page.close()
    return state


def take_one(browser: Browser, state: StorageState, shot: Shot, server: str, account: str) -> str:
    context = browser.new_context(storage_state=state, color_scheme=shot.scheme, viewport=shot.viewport)
    try:
        page = context.new_page()
        response = page.goto(server + shot.path.format(account=account))
        if response is None or not response.ok:
            status = "no answer" if response is None else response.status
            return f"{shot.name}: {shot.path} gives {status}"
        return save(page, DIRECTORY / f"{shot.name}.png")
    finally:
        context.close()


def save(page: Page, path: Path) -> str:
    with contextlib.suppress(NeverIdle):
        page.wait_for_load_state("networkidle", timeout=10_000)  # for pages that fetch their figures
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.name}: {size // 1000} kB")
    return f"{path.name} has {size} bytes, more than {MAX_BYTES}" if size > MAX_BYTES else ""


if __name__ == "__main__":
    sys.exit(main())
