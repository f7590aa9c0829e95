"""A headless browser for tests of pages, where there is one."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser():
    """Yield a headless Chromium: the system's, else Playwright's own; skip where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = [shutil.which(command) for command in COMMANDS]
        path = next((path for path in [*found, own] if path and Path(path).exists()), None)
        if path is None:
            pytest.skip("needs Chromium: apt-get install chromium, or playwright install chromium")
        try:
            # In a container or as root, Chromium has no sandbox of its own.
            opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"Chromium does not start: {str(error).splitlines()[0]}")
        yield opened
        opened.close()
