"""The two arms and what they are called are defined once, in records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from verifier.records import ARMS, LABELS, TITLES, Arm

PACKAGE = Path(__file__).parents[2] / "verifier"
AGAIN = re.compile(
    r"""\(["']ref["'],\ ["']spec["']\)          # a tuple of the arms
      | \{["'](ref|spec)["']:\ ["'](reference|speculative)""",  # a dictionary of their names
    re.VERBOSE,
)


def test_every_arm_has_a_title_and_a_label() -> None:
    assert set(ARMS) == set(get_args(Arm)) == TITLES.keys() == LABELS.keys()


def test_nobody_defines_them_again() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "records" / "arms.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if AGAIN.search(line)
    ]
    assert found == []
