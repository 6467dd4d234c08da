"""Print one Markdown page of all runs below a folder, the newest first: ``python summary.py reports``."""

import subprocess
import sys
import tempfile
from pathlib import Path


def main(folder: Path) -> int:
    code = 0
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.md"
        for path in sorted(folder.glob("*/run.jsonl"), reverse=True):
            done = subprocess.run(  # noqa: S603 - our own words
                ["lossless", "report", str(path), "--markdown", str(page)],  # noqa: S607
                stdout=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode == 0:
                print(page.read_text(encoding="utf-8"))
            code = code or done.returncode
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
