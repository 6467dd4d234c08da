"""The first line of a file."""

from __future__ import annotations

import time
from typing import Any, Literal

from verifier import __version__
from verifier.prompts.sets import Prompts
from verifier.records import SCHEMA_VERSION, Header, Invocation


def new_header(
    kind: Literal["check", "golden"], prompts: Prompts, options: dict[str, Any], made_by: tuple[Invocation, ...] = ()
) -> Header:
    """The first line of a file that begins now."""
    return Header(
        schema=SCHEMA_VERSION,
        tool=f"lossless {__version__}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        kind=kind,
        prompt_set=prompts.name,
        prompt_set_digest=prompts.digest,
        options=options,
        made_by=made_by,
    )
