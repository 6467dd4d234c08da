"""What is worth saying about a server before it is asked anything: once, in plain words."""

from __future__ import annotations

from msgspec import UNSET

from verifier.records import Abilities, Finding, Fingerprint

NO_PROBE = Finding(
    name="no-probe",
    severity="warning",
    message="The server did not answer a request for one token, so what its answers carry is unknown.",
)
NO_METRICS = Finding(
    name="no-metrics",
    message="The server publishes no metrics (or forbids them), so its draft counters cannot be read there.",
)
NO_SERVER_INFO = Finding(
    name="no-server-info",
    severity="warning",
    message="The server does not report its settings, or denies access to them: most of its fingerprint is unknown.",
)

_WORDS = {
    "version": "version",
    "model": "model",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_dtype": "KV-cache dtype",
    "attention_backend": "attention backend",
    "parallel": "parallel sizes",
    "prefix_cache": "prefix cache",
    "deterministic": "deterministic mode",
    "kv_pool_tokens": "size of its KV pool",
    "speculation": "speculation",
}


def unreported(fingerprint: Fingerprint, remedy: str = "") -> list[Finding]:
    """One finding that names what the server does not report and the two sides can therefore not be compared by."""
    missing = [words for name, words in _WORDS.items() if getattr(fingerprint, name) is UNSET]
    if not missing:
        return []
    hint = f" ({remedy})" if remedy else ""
    return [Finding("not-reported", f"The server does not report its {', '.join(missing)}{hint}.")]


def lossy_switch(setting: str) -> Finding:
    """A setting by which the server accepts drafts that the model alone would not have written."""
    return Finding(
        "lossy-switch",
        f"The server accepts drafts loosely on purpose: {setting}. Its answers may differ from the model's own.",
        severity="warning",
    )


def hidden_switch(switches: str) -> Finding:
    """Loose acceptance that this engine has and does not report."""
    return Finding("lossy-switch-hidden", f"Whether {switches} is set cannot be seen from outside this server.")


def no_ids(abilities: Abilities, since: str = "") -> list[Finding]:
    """Says that answers are compared as text, where a probe showed that they carry no token ids."""
    if abilities.token_ids is not False:
        return []
    cause = f"is older than {since}, or a proxy strips the ids" if since else "is of a kind that gives none"
    message = f"The answers carry no token ids, so they are compared as text: the server {cause}."
    return [Finding("no-token-ids", message, severity="warning")]
