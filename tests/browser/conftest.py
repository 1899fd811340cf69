"""Pages in a real Chromium, which Playwright drives, on Django's live server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.services import services_required

PATIENCE = 120_000
"""Milliseconds for whatever takes one second on an idle machine."""
MISSING = "no chromium on the PATH; on Debian and Ubuntu: apt install chromium-headless-shell"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        if services_required():
            raise pytest.UsageError(MISSING)
        pytest.skip(MISSING)
    # Playwright runs an event loop in the tests' thread, where Django would forbid every query.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        # Root, as in a container, may not make Chromium's sandbox.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.getuid() != 0, timeout=PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own, without cookies. A script's error or a failed request of its own fails the test."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda response: errors.append(response.url) if response.status >= 500 else None)
    yield page
    context.close()
    assert not errors
