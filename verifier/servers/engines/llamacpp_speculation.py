"""How a llama.cpp server speculates: the kinds by its own names, and their widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from verifier.records import SpeculationSettings
from verifier.servers import fields
from verifier.servers.metrics import Metric

PREFIX = "speculative."
"""Before the names of settings of speculation."""

NONE = "none"
"""The kind of a server that does not speculate."""

BY_POSITION = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
"""Accepted drafts by position: one sample for each position that a draft can have, once something was drafted."""


def speculation(
    probe: Mapping[str, Any], slots: Any, metrics: Mapping[str, Metric] | None
) -> SpeculationSettings | None | UnsetType:
    """The kinds of speculation, several joined by commas in the server's order, with the widths that it tells.

    Not every version names the most tokens of a draft (``n_max``) in its settings. The metrics show it then, from the
    first draft on.

    Args:
        probe: an answer of `/completion`; its settings are the only place that names the kinds. Those of `/props` say
            "none" whatever the server does.
        slots: the answer of `/slots`, which says no more than whether there is speculation.
    """
    settings = fields.mapping(probe.get("generation_settings"))
    reported = {name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)}
    method = _kinds(reported.pop("types", None)) or _kinds(reported.pop("type", None))
    active = fields.first(slots).get("speculative")
    if method == NONE or (not method and active is False):
        return None
    if not method and active is not True:
        return UNSET
    positions = metrics[BY_POSITION].by("position") if metrics is not None and BY_POSITION in metrics else {}
    width = {"n_max": str(max(positions) + 1)} if positions else {}
    return SpeculationSettings(method=method or "unknown", settings=width | fields.scalars(reported))


def _kinds(reported: Any) -> str:
    """Names in a text or a list, joined by commas; "none" only where there is no other, empty where there are none."""
    names = reported.split(",") if isinstance(reported, str) else reported if isinstance(reported, list) else []
    kinds = [name.strip() for name in names if isinstance(name, str) and name.strip()]
    return ",".join([name for name in kinds if name != NONE] or kinds[:1])
