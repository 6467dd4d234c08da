"""JSON: everything that the other formats show, as data, with the schema that it keeps to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from verifier.reports import data
from verifier.store.atomic import written_whole
from verifier.store.run_file import Run


def write_json(run: Run, path: Path) -> None:
    """Write the report of ``run`` to ``path`` as one object of `json_schema`. Raises `DiskError`."""
    encoder = msgspec.json.Encoder()
    with written_whole(path) as file:
        file.write(f'{{"format":{data.FORMAT},"overview":{encoder.encode(data.overview(run)).decode()},"prompts":[')
        comma = ""
        for report in data.prompts(run):
            file.write(f"{comma}\n{encoder.encode(report).decode()}")
            comma = ","
        file.write("\n]}\n")


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `write_json` writes."""
    schema = msgspec.json.schema(data.Report)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of lossless",
        "description": "Counts are tokens, speeds tokens per second, gaps nats; null is not known.",
        **schema,
    }
