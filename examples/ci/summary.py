"""Print one Markdown page of all runs below a folder, the newest first: ``python summary.py reports``."""

import sys
import tempfile
from pathlib import Path

from verifier.reports.markdown import write_markdown
from verifier.store.run_file import Run


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.md"
        for path in sorted(folder.glob("*/run.jsonl"), reverse=True):
            with Run(path) as run:
                write_markdown(run, page)
            print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
