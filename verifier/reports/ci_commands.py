"""What a CI runner would read as a command in a log, spelled so that it is text.

GitHub's runner takes a line that begins with ``::``, after white space, for a command, and ``##[`` anywhere; Azure's
takes ``##vso[``. In JSON the spelling is an escape, so that the value stays what it is.
"""

from __future__ import annotations

import os
import re

_AT_START = re.compile(r"^(\s*)::", re.MULTILINE)
_ANYWHERE = re.compile(r"##(?=\[|vso\[)")
_OFF = {"", "0", "false", "no", "off"}


def in_ci() -> bool:
    """Whether a CI system runs this process."""
    return any(os.environ.get(name, "").lower() not in _OFF for name in ("CI", "GITHUB_ACTIONS", "TF_BUILD"))


def without_commands(text: str) -> str:
    """Whole lines, with what a runner would take for a command spelled out."""
    return _ANYWHERE.sub(r"\\u0023#", _AT_START.sub(r"\1\\u003a:", text))


def in_ci_harmless(text: str) -> str:
    """`without_commands` in CI, and ``text`` as it is elsewhere."""
    return without_commands(text) if in_ci() else text
