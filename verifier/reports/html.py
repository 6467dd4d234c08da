"""One HTML file that needs nothing else: no server, no network, no font, and no script to be readable.

The differing prompts come first and are in the page as they are, up to `INLINE_BYTES`; what follows them is compressed
in the page and is put in place when it is opened. The same template draws both.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from verifier.reports import data, reading, reproduce
from verifier.reports.numbers import per_tokens
from verifier.reports.packing import Packer, pack
from verifier.reports.pictures import pictures
from verifier.reports.strip import strip
from verifier.reports.untrusted import visible
from verifier.store.atomic import written_whole
from verifier.store.run_file import Run

INLINE_BYTES = 4_500_000
"""Bytes of prompts that are in the page uncompressed, and so can be read without JavaScript."""

_STYLES = ("base.css", "overview.css", "prompts.css", "print.css")
_SCRIPTS = ("packs.js", "list.js", "views.js", "tokens.js", "keys.js")


def write_html(run: Run, path: Path, *, pieces: Mapping[int, str] | None = None) -> None:
    """Write the report of ``run`` to ``path``.

    ``pieces`` are the texts of token ids where they are known, for the view by tokens; ids are shown without them.
    One prompt is in memory at a time. Raises `DiskError` when the file cannot be written; what was at
    ``path`` is then still there.
    """
    jinja = environment()
    top = data.overview(run)
    script = _asset(_script())
    with written_whole(path) as file:
        page = jinja.get_template("page.html.j2").generate(
            top=top,
            pictures=pictures(top.measures),
            prompts=_prompts(jinja, run, pieces or {}),
            pieces=_packed_pieces(pieces or {}),
            style=style(),
            script=script,
        )
        file.writelines(page)


def _prompts(environment: Environment, run: Run, pieces: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Every prompt with its body drawn, and packs as they fill up."""
    template = environment.get_template("body.html.j2")
    packer = Packer()
    inline = 0
    for report in data.prompts(run):
        body = Markup(template.render(**_body(run, report, pieces)))  # noqa: S704 - the template escapes
        size = len(body.encode())
        fits = inline + size <= INLINE_BYTES
        inline += size if fits else 0
        entry: dict[str, Any] = {"n": report.number}
        if not fits:
            entry["html"] = str(body)
        if not fits or report.differs:
            entry["text"] = _searched(report)
        if report.differs:
            entry["raw"] = msgspec.to_builtins(data.raw_records(run, report.id))
        full = packer.add(entry) if len(entry) > 1 else None
        yield {"prompt": report, "body": body if fits else None, "pack": full and Markup(full)}  # noqa: S704 - base64
    rest = packer.flush()
    if rest:
        yield {"prompt": None, "pack": Markup(rest)}  # noqa: S704 - base64


def _packed_pieces(pieces: Mapping[int, str]) -> Markup:
    texts = {str(token): _writable(piece) for token, piece in pieces.items()}
    return Markup(pack(msgspec.json.encode(texts)))  # noqa: S704 - base64


def _body(run: Run, report: data.PromptReport, pieces: Mapping[int, str]) -> dict[str, Any]:
    """What the template of one prompt needs."""
    rendering = run.rendering(report.id) if report.differs else None
    both = report.ref is not None and report.spec is not None
    blocks = reading.compare(report.ref.text, report.spec.text) if report.ref and report.spec and report.differs else []
    ref = run.completion("ref", report.id) if report.differs else None
    return {
        "p": report,
        "names": data.token_names(report, pieces),
        "blocks": blocks,
        "both": both,
        "strip": strip(report) if report.differs else None,
        "curl": reproduce.curl(run, "ref", rendering, reproduce.length_limit(run, ref)) if report.differs else None,
        "minimal": reproduce.minimal(run, report.id, rendering, report.alignment) if report.differs else None,
    }


def _searched(report: data.PromptReport) -> str:
    """The text that a search looks at."""
    parts = [report.id, report.prompt or "", *(message.whole for message in report.messages)]
    answers = [answer for answer in (report.ref, report.spec) if answer is not None]
    parts += [part for answer in answers for part in (answer.text, *answer.tool_calls)]
    return _writable("\n".join(dict.fromkeys(parts)))


def _writable(text: str) -> str:
    """``text`` without lone surrogates, which neither JSON nor a file can hold."""
    return text.encode("utf-8", "replace").decode()


@cache
def environment() -> Environment:
    """What every page is drawn with: it escapes, and makes all text visible and harmless."""
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "chunks": reading.chunks,
        "spelled": reading.spelled,
        "number": _number,
        "per_tokens": per_tokens,
        "percent": lambda value, digits=1: None if value is None else f"{100 * value:.{digits}f} %",
        "kind": data.span_kind,
        "visible": visible,
    }
    environment.tests["explained"] = data.is_explained
    return environment


def _shown(value: object) -> object:
    """Every value on its way into a page: unknown ones in words, text made visible and harmless."""
    if value is None:
        return "not known"
    return value if isinstance(value, (int, float, Markup)) else visible(str(value), newlines=True)


def _number(value: float | None, digits: int = 2) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def _asset(text: str) -> dict[str, Markup]:
    """A style or script with the hash that lets the page's own policy accept it, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "hash": Markup(f"sha256-{digest}")}  # noqa: S704 - our own files


def style() -> dict[str, Markup]:
    """The style of every page, and its hash."""
    return _asset("".join(map(_read, _STYLES)))


def _script() -> str:
    return '(() => {\n"use strict";\n' + "".join(map(_read, _SCRIPTS)) + "})();\n"


@cache
def _read(name: str) -> str:
    return (files("verifier.reports") / "assets" / name).read_text(encoding="utf-8")
