"""Commands that repeat the whole run, one prompt, or one prompt up to the divergence point."""

from __future__ import annotations

import json
import shlex

from verifier.compare.fingerprints import FILE_ENGINE
from verifier.records import ARMS, Alignment, Arm, Completion, Invocation, Rendering
from verifier.reports.untrusted import visible
from verifier.servers.reproduction import reproduce
from verifier.store.commands import made_by, note, words
from verifier.store.run_file import Run

MAX_TOKENS = 512
"""Used where the file does not say how long the answer was allowed to be."""

PAST_THE_DIFFERENCE = 16
"""Tokens that a minimal reproduction asks for beyond the first difference: enough to see both sides continue."""


def again(run: Run) -> str:
    """The command line that repeats this run, files and addresses as they were given.

    One line per command where it takes several; empty where it is unknown.
    """
    return "\n".join(map(shell_line, made_by(run)))


def about_again(run: Run) -> str:
    """What to do before the command of `again` is run, in sentences; empty where there is nothing."""
    return visible(note(made_by(run)))


def shell_line(step: Invocation) -> str:
    """A command as it is typed into a shell, on one line."""
    return shlex.join(visible(word) for word in words(step))


def curl(run: Run, arm: Arm, rendering: Rendering | None, max_tokens: int) -> str | None:
    """The prompt as one curl command for one arm; ``None`` where its server or its text is unknown."""
    server = run.servers.get(arm)
    if server is None or rendering is None or server.fingerprint.engine == FILE_ENGINE:
        return None
    request = reproduce(server, rendering, max_tokens)
    if request is None:
        return None
    # ASCII, so that what is copied from a report is what was asked, whatever characters the prompt holds.
    data = json.dumps(request.body, ensure_ascii=True)
    words = ["curl", "-sS", request.url, "-H", "Content-Type: application/json", "--data-binary"]
    return f"{shlex.join(words)} {shlex.quote(data)}"


def length_limit(run: Run, ref: Completion | None) -> int:
    """``max_tokens`` of a prompt: its own unless the run caps it, the run's, or as many as the reference gave."""
    rendering = run.rendering(ref.prompt_id) if ref is not None else None
    limit = run.header.options.get("max_tokens")
    own = rendering.prompt.max_tokens if rendering is not None and rendering.prompt is not None else None
    if own is not None:
        return min(own, limit) if isinstance(limit, int) and run.header.options.get("capped") else own
    if isinstance(limit, int):
        return limit
    if ref is not None:
        return ref.completion_tokens or len(ref.ids or ()) or MAX_TOKENS
    return MAX_TOKENS


def minimal(run: Run, prompt_id: str, rendering: Rendering | None, alignment: Alignment | None) -> str | None:
    """A shell script that asks both servers for just enough tokens to see the first difference."""
    at = alignment.spans[0].ref_start if alignment is not None and alignment.spans else None
    limit = MAX_TOKENS if at is None else at + PAST_THE_DIFFERENCE
    ref, spec = (curl(run, arm, rendering, limit) for arm in ARMS)
    if ref is None or spec is None:
        return None
    where = "equal tokens, different text" if at is None else f"first difference at token {at}"
    return "\n".join(
        [
            "#!/bin/sh",
            f"# {visible(prompt_id)}: {where}",
            f"{ref} > ref.json",
            f"{spec} > spec.json",
            "diff ref.json spec.json",
            "",
        ]
    )
