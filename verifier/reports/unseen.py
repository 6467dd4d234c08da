"""Differences that no text shows: answers that read the same, of other tokens."""

from __future__ import annotations

from verifier.records import Comparison
from verifier.reports.untrusted import visible


def unseen(comparison: Comparison) -> str:
    """The tokens at the first difference, where the texts from there on look alike; empty where they do not.

    Such as ``the texts look alike, the tokens differ: reference 7 '<|im_end|>', speculative 8``. It is safe to print.
    """
    alignment = comparison.alignment
    if alignment is None or alignment.first is None or not alignment.spans:
        return ""
    first, span = alignment.first, alignment.spans[0]
    if visible(first.ref_text) != visible(first.spec_text):
        return ""
    split = next((one for one in comparison.splits if one.index == first.token), None)
    ids = (split.ref_token, split.spec_token) if split and not split.texts else (None, None)
    ref, spec = (_named(token, text) for token, text in zip(ids, (span.ref_text, span.spec_text), strict=True))
    return f"the texts look alike, the tokens differ: reference {ref}, speculative {spec}" if ref != spec else ""


def _named(token: int | None, text: str) -> str:
    piece = repr(visible(text)) if text else ""
    return " ".join(filter(None, ["" if token is None else str(token), piece])) or "no token"
