"""Which of the models that a server lists is asked."""

from __future__ import annotations

from typing import Any

from verifier.errors import ServerError
from verifier.records import Finding
from verifier.servers import fields
from verifier.servers.addresses import MODEL
from verifier.servers.http import Http

NAMED = 8
"""Models that a message names; of more it says how many."""
LONGEST_NAME = 80
"""Characters of a model's name in a message."""


def asked_model(listed: object, http: Http) -> dict[str, Any]:
    """The entry of ``/v1/models`` that the address names, or else the first; empty where none is listed.

    Raises:
        ServerError: ``no-such-model``, when the address names one that is not listed.
    """
    entries = fields.mappings(fields.mapping(listed).get("data"))
    if http.model is None:
        return next(iter(entries), {})
    if not _names(entries):
        # A server that lists none may still distinguish models by the name in a request.
        return {"id": http.model}
    for entry in entries:
        if entry.get("id") == http.model:
            return entry
    raise ServerError(
        "no-such-model",
        f"{http.url} has no model {http.model!r}; it has {_told(entries)}.",
        f"Write one of these names behind the address: {http.url}{MODEL}NAME.",
    )


def several_models(listed: object, http: Http) -> list[Finding]:
    """A finding where the first of several models is asked because the address names none.

    Names of one model, as ``--served-model-name`` gives them, have one root.
    """
    entries = fields.mappings(fields.mapping(listed).get("data"))
    if http.model is not None or len({str(entry.get("root") or name) for name, entry in _names(entries)}) < 2:
        return []
    return [
        Finding(
            "several-models",
            f"The server has {_told(entries)}; the first is asked. To ask another, write it behind the address: "
            f"{http.url}{MODEL}NAME.",
            "warning",
        )
    ]


def _names(entries: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The entries that have a name, and it."""
    return [(name, entry) for entry in entries if (name := fields.text(entry.get("id")))]


def _told(entries: list[dict[str, Any]]) -> str:
    names = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name, _ in _names(entries)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
