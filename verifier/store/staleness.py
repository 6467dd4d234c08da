"""Whether a golden still fits: which of its answers were given to something else than what is asked now, and why.

An answer to another prompt, by another model, another version of the engine or through another chat template is not an
answer to compare with. It is *stale*, which is not a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from verifier.compare.fingerprints import differs, show
from verifier.errors import StoreError
from verifier.prompts.sets import Prompts
from verifier.records import Finding, Fingerprint, Prompt, Rendering
from verifier.store.run_file import Run

NAMED = 5
"""Prompts that a message names; of more it says how many."""

LONGEST_CHANGE = 120
"""Characters in which a change of a parameter is shown; a schema or tools may be pages long."""

OF_ALL = {"model": "model", "quantization": "quantization", "version": "engine version"}
"""Fields of a server that every answer depends on."""

OF_CHATS = {"chat_template": "chat template"}
"""Fields that only answers to rendered messages depend on."""


class StaleGolden(StoreError):
    """A golden that cannot be compared with, as a whole."""

    exit_code = 3


@dataclass
class Fit:
    """How a golden fits the prompts and the server of now. Ids of prompts, in the order of the prompts."""

    fresh: set[str] = field(default_factory=set)
    stale: dict[str, list[str]] = field(default_factory=dict)
    """By reason."""
    missing: list[str] = field(default_factory=list)
    """Prompts that the golden lacks."""
    unused: list[str] = field(default_factory=list)
    """Prompts of the golden that are not asked now."""

    @property
    def stale_count(self) -> int:
        return sum(len(ids) for ids in self.stale.values())

    def findings(self) -> Iterator[Finding]:
        """One for every reason, not for every prompt."""
        for reason, ids in self.stale.items():
            only = ids[0] if len(ids) == 1 else None
            message = f"Not compared, because the golden is stale: {named_ids(ids)}: {reason}. Record it again."
            yield Finding("stale-golden", message, severity="warning", prompt_id=only)
        if self.missing:
            advice = "`lossless record --update-new-only` adds them."
            yield Finding(
                "missing-in-golden",
                f"Not in the golden, so not compared: {named_ids(self.missing)}. {advice}",
                "warning",
            )
        if self.unused:
            advice = "`lossless golden prune` takes them out."
            yield Finding("unused-in-golden", f"In the golden but not asked: {named_ids(self.unused)}. {advice}")

    def require(self, golden: Run, *, strict: bool) -> None:
        """Refuse a golden that fits in nothing, and with ``strict`` one that does not fit in everything.

        Raises:
            StaleGolden: with all reasons.
        """
        reasons = "\n".join(f"  {finding.message}" for finding in self.findings())
        if not self.fresh:
            raise StaleGolden(
                f"Nothing in {golden.path} can be compared with:\n{reasons}",
                "Record it again with --update, or name what may differ with --allow-mismatch.",
            )
        if strict and (self.stale or self.missing or self.unused):
            raise StaleGolden(
                f"{golden.path} does not fit, and --strict-golden was given:\n{reasons}", "Record it again."
            )


def fit(
    golden: Run, prompts: Prompts, now: Fingerprint | None, *, allow: Collection[str] = (), whole: bool = True
) -> Fit:
    """How ``golden`` fits ``prompts`` and the server that is to be compared with it.

    Args:
        now: what that server is, or ``None`` where there is none to ask.
        allow: fields of it that may differ.
        whole: whether ``prompts`` are all there are; of a part, the rest of the golden is not unused.
    """
    server = golden.servers.get("ref")
    before = server.fingerprint if server is not None and now is not None else None
    of_all = _changes(before, now, OF_ALL, allow)
    of_chats = _changes(before, now, OF_CHATS, allow)
    result = Fit()
    asked = set()
    for prompt in prompts:
        asked.add(prompt.id)
        rendering = golden.rendering(prompt.id)
        if rendering is None:
            result.missing.append(prompt.id)
            continue
        reasons = [*of_all, *(of_chats if _is_chat(rendering) else ()), *_changed(rendering, prompt)]
        if reasons:
            result.stale.setdefault("; ".join(reasons), []).append(prompt.id)
        else:
            result.fresh.add(prompt.id)
    if whole:
        result.unused = [prompt_id for prompt_id in golden.prompt_ids() if prompt_id not in asked]
    return result


def _changes(
    before: Fingerprint | None, now: Fingerprint | None, fields: dict[str, str], allow: Collection[str]
) -> list[str]:
    if before is None or now is None or before.engine != now.engine:
        # What each engine writes in its own way says nothing across engines; the comparison of servers covers the rest.
        return []
    return [
        f"the {words} was {show(getattr(before, name))}, it is {show(getattr(now, name))}"
        for name, words in fields.items()
        if name not in allow and differs(name, getattr(before, name), getattr(now, name))
    ]


def _is_chat(rendering: Rendering) -> bool:
    if rendering.messages is not None:
        return True
    return rendering.prompt is not None and bool(rendering.prompt.messages) and rendering.text is None


def _changed(rendering: Rendering, prompt: Prompt) -> list[str]:
    """What changed in a prompt, in words."""
    if rendering.digest == prompt.digest:
        return []
    old = rendering.prompt
    if old is None:
        return ["the prompt has changed"]
    changes = []
    if (old.text, old.messages) != (prompt.text, prompt.messages):
        changes.append("the text of the prompt has changed")
    if old.max_tokens != prompt.max_tokens:
        changes.append(f"its max_tokens was {show(old.max_tokens)}, it is {show(prompt.max_tokens)}")
    for name in old.parameters.__struct_fields__:
        before, now = getattr(old.parameters, name), getattr(prompt.parameters, name)
        if before != now:
            values = f"was {before!r}, it is {now!r}"
            changes.append(f"its parameter {name} {values if len(values) <= LONGEST_CHANGE else 'has changed'}")
    return changes or ["the prompt has changed"]


def named_ids(ids: Sequence[str]) -> str:
    """The first `NAMED` ids, and how many more there are."""
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{', '.join(ids[:NAMED])}{more}"


class Without:
    """Prompts, some left out; see `prompts.Prompts`."""

    def __init__(self, prompts: Prompts, keep: Collection[str]) -> None:
        self._prompts = prompts
        self._keep = keep
        self.name = prompts.name
        self.digest = prompts.digest

    def __len__(self) -> int:
        return len(self._keep)

    def __iter__(self) -> Iterator[Prompt]:
        return (prompt for prompt in self._prompts if prompt.id in self._keep)
