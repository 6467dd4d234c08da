"""Every kind of line that a file can hold."""

from __future__ import annotations

from typing import Union

from verifier.records.closing import End
from verifier.records.run import (
    Comparison,
    Completion,
    Drafts,
    Failure,
    Finding,
    Header,
    Measurement,
    Rendering,
    ServerRecord,
    Summary,
)

Record = Union[  # noqa: UP007 - an alias that Python 3.10 can take apart
    Header, ServerRecord, Rendering, Completion, Failure, Drafts, Measurement, Comparison, Finding, Summary, End
]
