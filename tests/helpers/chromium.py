"""The system's Chromium, driven by Playwright's Python package, which brings its own driver and needs no Node."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EXECUTABLE = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""

# Playwright makes a fresh profile for every browser. The sandbox does not work for root, which CI containers run as.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=ARGUMENTS)
        yield browser
        browser.close()


def until(page: Page, expression: str, seconds: float = 20) -> Any:
    """The first true value of ``expression``. Playwright's own waiting evaluates text in the page, which the page's
    Content-Security-Policy forbids."""
    end = time.monotonic() + seconds
    while True:
        value = page.evaluate(expression)
        if value:
            return value
        assert time.monotonic() < end, f"{expression} did not come true within {seconds} s"
        time.sleep(0.01)


# How long a filter takes: from the change to the frame that shows its result.
_TIMED = """async () => {
  const before = document.documentElement.dataset.applied, start = performance.now();
  (() => { ACTION })();
  while (document.documentElement.dataset.applied === before) await new Promise((done) => setTimeout(done, 1));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now() - start;
}"""


def filtering_ms(page: Page, action: str) -> float:
    """Milliseconds from a change of the filters to its result on the screen; ``action`` is JavaScript that makes it."""
    return float(page.evaluate(_TIMED.replace("ACTION", action)))


def first_paint_ms(page: Page) -> float:
    """Milliseconds from navigation to the first paint with content."""
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    return float(until(page, paint))
