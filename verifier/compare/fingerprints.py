"""Whether two servers can be compared: their fingerprints side by side, and one server's before and after a run.

A field that either side does not report is neither equal nor different: it is passed over here, and the adapter has
said that it is unknown. A field that is known to be absent differs from one that is known to be there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from msgspec import UNSET

from verifier.records import TITLES, Arm, Finding, Fingerprint, SpeculationSettings

Severity = Literal["note", "warning", "invalid"]

FIELDS: dict[str, tuple[str, Severity]] = {
    "engine": ("engine", "warning"),
    "version": ("engine version", "warning"),
    "model": ("model", "invalid"),
    "quantization": ("quantization", "invalid"),
    "dtype": ("dtype", "warning"),
    "kv_dtype": ("KV-cache dtype", "warning"),
    "tokenizer": ("tokenizer", "warning"),
    "vocabulary": ("size of the vocabulary", "warning"),
    "chat_template": ("chat template", "warning"),
    "attention_backend": ("attention backend", "warning"),
    "parallel": ("parallel sizes", "warning"),
    "deterministic": ("deterministic mode", "warning"),
    "prefix_cache": ("prefix cache", "warning"),
    "slots": ("requests at a time", "note"),
    "context_length": ("context length", "note"),
    "kv_pool_tokens": ("size of the KV pool in tokens", "note"),
}
"""Every field that is compared, by the name that ``--allow-mismatch`` takes: its words and how much it weighs."""

LOSSY_SWITCH = "lossy-switch"
"""Name of the finding that a server is set to accept tokens which its model would not have picked."""

SERVER_CHANGED = "server-changed"
"""Name of the finding that a server at the end of a run was not the one of its beginning."""

GRAVE = frozenset({"engine", "version", "model", "quantization", "speculation"})
"""Fields of one server whose change makes it another server."""

FILE_ENGINE = "file"
"""Stands for the engine where answers come from a file of another tool, which does not say what wrote them."""

ALLOWABLE = frozenset({*FIELDS, "speculation"})
"""Names that ``--allow-mismatch`` takes."""

WIDTH = "n_max"
"""The setting of speculation for the most tokens of a draft, by llama.cpp's name."""

_OF_ONE_ENGINE = {"version", "tokenizer", "chat_template", "attention_backend", "parallel"}
"""Fields that each engine writes in its own way, so that they mean nothing across engines."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_PLAIN_DTYPES = {"bfloat16", "float16", "float32"}


def compare_fingerprints(ref: Fingerprint, spec: Fingerprint, *, allow: Collection[str] = ()) -> list[Finding]:
    """Why two servers should not be compared, most severe first.

    Args:
        allow: names of fields whose difference is meant; it is then a note.

    Returns:
        Findings of severity ``invalid`` where the answers cannot be compared (another model or quantization, a
        reference that speculates), ``warning`` where a difference may have that cause instead of speculation.
    """
    findings = [
        _mismatch(name, getattr(ref, name), getattr(spec, name), allow)
        for name in FIELDS
        if not (ref.engine != spec.engine and name in _OF_ONE_ENGINE)
        and differs(name, getattr(ref, name), getattr(spec, name))
    ]
    findings += _drafting(ref, spec, allow)
    order = ("invalid", "warning", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def changed_fingerprint(before: Fingerprint, after: Fingerprint, arm: Arm) -> list[Finding]:
    """What became of one server during a run: it was restarted, or several stand behind one address."""
    changes = changed_fields(before, after)
    if not changes:
        return []
    message = (
        f"The {TITLES[arm]} changed during the run: {named_changes(before, after)}. It was restarted, or several "
        "servers stand behind its address; its answers are not all of one server."
    )
    return [Finding(SERVER_CHANGED, message, severity="invalid" if GRAVE & changes.keys() else "warning", arm=arm)]


def changed_fields(before: Fingerprint, after: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """The two values of every field in which one server's fingerprints are known to differ, by name."""
    return {
        name: (getattr(before, name), getattr(after, name))
        for name in (*FIELDS, "speculation")
        if differs(name, getattr(before, name), getattr(after, name))
    }


def named_changes(before: Fingerprint, after: Fingerprint) -> str:
    """Every field in which two fingerprints differ with both values, such as "requests at a time 4, then 1"."""
    return "; ".join(f"{_words(name)} {_both(*values)}" for name, values in changed_fields(before, after).items())


def _both(old: Any, new: Any) -> str:
    """Two different values, in words that differ as well."""
    if not (isinstance(old, SpeculationSettings) and isinstance(new, SpeculationSettings)) or old.method != new.method:
        return f"{show(old)}, then {show(new)}"
    details = [(name, old.settings.get(name), new.settings.get(name)) for name in {**old.settings, **new.settings}]
    details.insert(0, ("draft model", old.draft_model, new.draft_model))
    changes = (f"{name} {show(one)}, then {show(other)}" for name, one, other in details if one != other)
    return f"{old.method} with {', '.join(changes)}"


def differs(name: str, ref: Any, spec: Any) -> bool:
    """Whether two values of a field are known to differ."""
    if ref is UNSET or spec is UNSET or ref == spec:
        return False
    if name == "engine" and FILE_ENGINE in {ref, spec}:
        return False
    if name == "model" and isinstance(ref, str) and isinstance(spec, str):
        return not _same_model(ref, spec)
    if name in {"dtype", "kv_dtype"}:
        return _other_dtype(ref, spec)
    if isinstance(ref, SpeculationSettings) and isinstance(spec, SpeculationSettings):
        # Some answers only show that a server speculates, not how.
        return "unknown" not in {ref.method, spec.method} and _other_speculation(ref, spec)
    return True


def _other_speculation(ref: SpeculationSettings, spec: SpeculationSettings) -> bool:
    """llama.cpp's metrics show the width of drafts only after the first one: a width that appears is not a change."""
    if WIDTH in ref.settings and WIDTH in spec.settings:
        return True
    one, other = ({name: value for name, value in side.settings.items() if name != WIDTH} for side in (ref, spec))
    return (ref.method, ref.draft_model, one) != (spec.method, spec.draft_model, other)


def _same_model(ref: str, spec: str) -> bool:
    """A hub's ``owner/name`` and the folder ``name`` it was copied to are taken for one model; two owners are not."""
    if "/" in ref and "/" in spec:
        return False
    return ref.rpartition("/")[2] == spec.rpartition("/")[2]


def _other_dtype(ref: str | None, spec: str | None) -> bool:
    names = {_DTYPES.get(name, name) for name in (ref, spec) if name is not None}
    if "auto" in names:
        # "auto" is the model's own dtype, whichever of the plain ones that is.
        return not names - {"auto"} <= _PLAIN_DTYPES
    return len(names) > 1 or None in (ref, spec)


def _mismatch(name: str, ref: Any, spec: Any, allow: Collection[str]) -> Finding:
    words, severity = FIELDS[name]
    said = f"The two servers differ in {words}: the reference has {show(ref)}, the speculative server {show(spec)}."
    if name in allow:
        return Finding(f"{name}-mismatch", f"{said} This was allowed.", severity="note")
    if severity == "invalid":
        said += f" Compare like with like, or pass --allow-mismatch {name} if this is meant."
    elif name == "kv_pool_tokens":
        said += _pool(ref, spec)
    return Finding(f"{name}-mismatch", said, severity=severity)


def _pool(ref: Any, spec: Any) -> str:
    """What speculation costs in cache."""
    if not isinstance(ref, int) or not isinstance(spec, int) or ref <= 0 or spec >= ref:
        return ""
    return f" Speculation leaves {spec / ref:.0%} of the pool."


def _drafting(ref: Fingerprint, spec: Fingerprint, allow: Collection[str]) -> list[Finding]:
    """Speculation has to be off on one side and on on the other."""
    findings = []
    if isinstance(ref.speculation, SpeculationSettings):
        message = (
            f"The reference speculates too ({ref.speculation.method}), so a difference would show nothing about "
            "speculation."
        )
        if "speculation" in allow:
            findings.append(
                Finding("reference-speculates", f"{message} This was allowed.", severity="warning", arm="ref")
            )
        else:
            advice = "Start it without speculation, or pass --allow-mismatch speculation if this is meant."
            findings.append(Finding("reference-speculates", f"{message} {advice}", severity="invalid", arm="ref"))
    elif ref.speculation is UNSET:
        message = "Whether the reference speculates cannot be seen; it has to be started without."
        findings.append(Finding("reference-speculation-unknown", message, arm="ref"))
    if spec.speculation is None:
        message = "The speculative server does not speculate, so equal answers would show nothing about speculation."
        findings.append(Finding("not-speculating", message, severity="warning", arm="spec"))
    return findings


def deterministic_but_different(ref: Fingerprint, spec: Fingerprint, differing: int) -> list[Finding]:
    """A note where both servers run deterministically and ``differing`` answers differ all the same."""
    if not differing or ref.deterministic is not True or spec.deterministic is not True:
        return []
    answers = "1 answer differs" if differing == 1 else f"{differing} answers differ"
    message = (
        f"Both servers run in deterministic mode, and {answers} all the same. That mode makes one server repeat "
        "itself at any batch size; it does not make a verify step compute what single steps compute."
    )
    return [Finding("deterministic-but-different", message)]


def in_words(value: object) -> str | None:
    """A field's value for a table; ``None`` where the server did not report it."""
    if value is UNSET:
        return None
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, SpeculationSettings):
        settings = ", ".join(f"{name}={setting}" for name, setting in value.settings.items())
        return "; ".join(filter(None, (value.method, value.draft_model, settings)))
    return str(value)


def show(value: object) -> str:
    """A field's value within a sentence."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, SpeculationSettings):
        return value.method
    if isinstance(value, int):
        return f"{value:,}"
    return "unknown" if value is UNSET else "none" if value is None else repr(value)


def method_of(fingerprint: Fingerprint | None) -> str | None:
    """How a server says that it speculates; ``None`` where it does not, or does not say."""
    speculation = fingerprint.speculation if fingerprint is not None else None
    return speculation.method if isinstance(speculation, SpeculationSettings) else None


def _words(name: str) -> str:
    return FIELDS[name][0] if name in FIELDS else name
