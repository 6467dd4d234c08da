"""Time and size of reports, and what a browser makes of them: ``python -m benchmarks.report [--prompts N]``.

Prints one line a measure. Chromium is needed for the measures in the browser; without it they are left out.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers import chromium
from tests.helpers import large_runs as volume
from verifier.reports.html import write_html
from verifier.reports.json import write_json
from verifier.reports.junit import write_junit
from verifier.reports.markdown import write_markdown
from verifier.store.run_file import Run

CHANGE = "dispatchEvent(new Event('change', { bubbles: true }))"
SEARCH = "const s = document.getElementById('search'); s.value = '{}'; s.dispatchEvent(new Event('input'));"
CATEGORY = "const s = document.getElementById('by-category'); s.selectedIndex = 2; s." + CHANGE
ACTIONS = {
    "filter by class": "document.querySelector('[name=outcome][value=exact]').click();",
    "filter by category": CATEGORY,
    "search a text (120 ms of it are waiting for the typist)": SEARCH.format("prompt-0012"),
    "search a regular expression": "document.getElementById('regex').checked = true;"
    + SEARCH.format(r"\\bt[ea]\\w+ .*\\w+n\\b"),
}


def tell(name: str, value: float, unit: str) -> None:
    print(f"{name:<64} {value:>10,.2f} {unit}", flush=True)


def timed(name: str, work: Callable[[], object]) -> None:
    start = time.perf_counter()
    work()
    tell(name, time.perf_counter() - start, "s")


def built(folder: Path, make: Callable[[Path], Run], title: str) -> None:
    """Write every format of one run."""
    path = folder / f"{title}.jsonl"
    make(path).close()
    start = time.perf_counter()
    run = Run(path)
    tell(f"{title}: open the run file", time.perf_counter() - start, "s")
    writers: dict[str, Callable[[Run, Path], None]] = {
        "html": write_html,
        "md": write_markdown,
        "xml": write_junit,
        "json": write_json,
    }
    for suffix, write in writers.items():
        target = folder / f"{title}.{suffix}"
        timed(f"{title}: write {target.name}", lambda write=write, target=target: write(run, target))  # type: ignore[misc]
        tell(f"{title}: size of {target.name}", target.stat().st_size / 1e6, "MB")
    run.close()


def shown(path: Path, title: str, actions: dict[str, str]) -> None:
    """Open a page and measure it."""
    with chromium.chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        tell(f"{title}: first paint", chromium.first_paint_ms(page), "ms")
        page.wait_for_load_state("load")
        tell(f"{title}: loaded", (time.perf_counter() - start) * 1000, "ms")
        chromium.until(page, "document.documentElement.dataset.ready", 60)
        tell(f"{title}: texts ready to be searched", (time.perf_counter() - start) * 1000, "ms")
        for name, action in actions.items():
            tell(f"{title}: {name}", chromium.filtering_ms(page, action), "ms")
        longest = page.evaluate(
            """async () => {
              let longest = 0;
              for (let turn = 0; turn < 20; turn++) {
                const start = performance.now();
                document.querySelector("[data-do=next]").click();
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
                longest = Math.max(longest, performance.now() - start);
              }
              return longest;
            }"""
        )
        tell(f"{title}: slowest of 20 jumps to the next difference", longest, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=131_072, help="length of the long answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built(folder, lambda path: volume.many(path, options.prompts), "many")
        built(folder, lambda path: volume.long(path, options.tokens), "long")
        tell("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")
        if chromium.EXECUTABLE:
            shown(folder / "many.html", "many", ACTIONS)
            shown(folder / "long.html", "long", {})


if __name__ == "__main__":
    main()
