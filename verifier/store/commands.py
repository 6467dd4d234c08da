"""How a file was made: the command and its options, from which a report prints the command that makes it again.

Every command is built here, whoever runs it: the command line, pytest, the demo or a program. Secrets are taken out
before anything is stored.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verifier.prompts.sets import names
from verifier.records import ARMS, Invocation
from verifier.redaction import HIDDEN, public_address, without_secrets
from verifier.run_options import OPTIONS
from verifier.servers.addresses import key_variables
from verifier.store.run_file import Run

UNREPEATED = frozenset({"json", "quiet", *(one.long_name for one in OPTIONS if not one.repeated)})
"""Options, by long name, that change neither the plan nor the verdict. They are not stored."""

_LONG_NAMES = {one.name: one.long_name for one in OPTIONS}


def invocation(command: str, options: Mapping[str, Any], arguments: Iterable[str | Path] = ()) -> Invocation:
    """A command with its options by long name, secrets taken out.

    Options that are not set (``None``, ``False``, empty) and those of `UNREPEATED` are left out.
    """
    kept = {name: _plain(name, value) for name, value in options.items() if name not in UNREPEATED and _is_set(value)}
    return Invocation(command, kept, tuple(map(_text, arguments)), _keys(command, kept))


def long_name(name: str) -> str:
    """The long name, without dashes, of the option for a setting."""
    return _LONG_NAMES.get(name, name.replace("_", "-"))


def words(step: Invocation) -> list[str]:
    """The command line of a step, word by word."""
    found = ["lossless", step.command]
    # A file whose name begins with a dash would be taken for an option.
    found += (f".{os.sep}{one}" if one.startswith("-") else one for one in step.arguments)
    for name, value in step.options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                found.append(f"--{name}")
            elif str(one).startswith("-"):
                found.append(f"--{name}={one}")
            else:
                found += [f"--{name}", str(one)]
    return found


def made_by(run: Run) -> tuple[Invocation, ...]:
    """The commands that make this file, in order. For files of earlier versions they are concluded from what there
    is; empty where that is not possible."""
    return run.header.made_by or tuple(_concluded(run))


def followed_by(steps: Sequence[Invocation], step: Invocation) -> tuple[Invocation, ...]:
    """``step`` as the last one, and once: to repeat it changes nothing."""
    return (*(one for one in steps if one != step), step)


def note(steps: Sequence[Invocation]) -> str:
    """What has to be known before these commands are run; empty where there is nothing."""
    sentences = []
    if not steps:
        sentences.append("This file joins several runs and does not say how they were made.")
    if len(steps) > 1:
        sentences.append(
            f"It takes {len(steps)} commands, in this order; where a later one names a file that an earlier one "
            "writes, give the new path."
        )
    keys = sorted({key for step in steps for key in step.keys})
    if keys:
        sentences.append(f"Set {' and '.join(keys)} first.")
    if any(HIDDEN in word for step in steps for word in words(step)):
        sentences.append(f"Secrets were left out: put one back for each {HIDDEN}.")
    return " ".join(sentences)


def _is_set(value: Any) -> bool:
    """Zero is a value, such as that of ``--tolerance 0``."""
    if isinstance(value, (str, list, tuple, set, frozenset)):
        return bool(value)
    return value is not None and value is not False


def _plain(name: str, value: Any) -> Any:
    """A value as it is stored."""
    if isinstance(value, (list, tuple, set, frozenset)):
        ordered = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(name, one) for one in ordered]
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = _text(value)
    if name.endswith("-cmd"):
        return without_secrets(text)
    return public_address(text) if name in {"ref", "spec"} else text


def _text(value: object) -> str:
    """A word that a JSON file can hold, whatever bytes a file's name is made of."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _keys(command: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The environment variables that held the API keys of the servers that are asked."""
    asked = [arm for arm in ARMS if {arm, f"{arm}-cmd"} & set(options) or "config" in options]
    used = (next((name for name in key_variables(arm) if os.environ.get(name)), None) for arm in asked)
    return tuple(dict.fromkeys(name for name in used if name is not None))


def _concluded(run: Run) -> Iterator[Invocation]:
    """The command of a file that does not say how it was made: as much of it as its header shows."""
    header = run.header
    stored = header.options
    if "compare" in stored and isinstance(stored["compare"], (list, tuple)):
        yield Invocation("compare", arguments=tuple(map(_marked_file, stored["compare"])))
        return
    if header.kind == "check" and "max_tokens" in stored and not {"spec", "ref", "golden"} & set(stored):
        return  # the only files without servers in their options are joined ones
    options: dict[str, Any] = _servers(run)
    if header.kind == "golden":
        options["output"] = run.path.name
    if stored.get("golden"):
        # It brings its own prompts and limits.
        options.pop("ref", None)
        options["golden"] = _marked_file(stored["golden"])
    else:
        options |= _chosen_prompts(header.prompt_set)
        options |= {"max-tokens": stored.get("max_tokens")} if stored.get("capped") else {}
        options |= _unless(stored, ref_runs=2, noise_concurrency=0)
    options |= _unless(stored, concurrency=1)
    mismatch = stored.get("allow_mismatch")
    options["allow-mismatch"] = list(mismatch) if isinstance(mismatch, (list, tuple)) else []
    step = invocation("record" if header.kind == "golden" else "check", options)
    yield msgspec.structs.replace(step, keys=())  # of the environment then, not now


def _unless(stored: Mapping[str, Any], **defaults: int) -> dict[str, Any]:
    """Options that are not what they would be anyway."""
    return {long_name(name): stored[name] for name, usual in defaults.items() if stored.get(name, usual) != usual}


def _servers(run: Run) -> dict[str, Any]:
    """Where the servers were, or the commands that started them."""
    stored = run.header.options.get("command")
    if isinstance(stored, str):
        started = _server_options(stored)
        if started:
            return started
    options: dict[str, Any] = {}
    for arm in reversed(ARMS):
        mark = run.header.options.get(arm)
        if isinstance(mark, str) and mark and not re.match(r"https?://", mark):
            # Started for the run, at an address that is gone. The environment is written before the command.
            options[f"{arm}-cmd"] = re.sub(rf"^(?:\w+={HIDDEN} )+", "", mark)
        elif arm in run.servers:
            options[arm] = run.servers[arm].url
    return options


def _server_options(command: str) -> dict[str, Any]:
    """The options about servers in a command line that an earlier version stored."""
    try:
        found = shlex.split(command)
    except ValueError:
        return {}
    known = {"--ref", "--spec", "--ref-cmd", "--spec-cmd"}
    pairs = zip(found, [*found[1:], ""], strict=True)
    options: dict[str, Any] = {name.removeprefix("--"): value for name, value in pairs if name in known}
    return options | ({"together": True} if "--together" in found else {})


def _marked_file(mark: object) -> str:
    """The name in a mark such as ``golden.jsonl (1024 bytes, 1700000000)``."""
    return str(mark).rpartition(" (")[0] or str(mark)


_SAMPLED = re.compile(r"-sample=(\d+),seed=(-?\d+)$")
_FILTERED = re.compile(r"-(category|language|tag|id)=")


def _chosen_prompts(name: str) -> dict[str, Any]:
    """The options that give a selection of this name: ``seed8+mine-category=code,prose-sample=4,seed=0``."""
    options: dict[str, Any] = {}
    sampled = _SAMPLED.search(name)
    if sampled:
        name = name[: sampled.start()]
        options = {"sample": int(sampled[1]), "seed": int(sampled[2])}
    sets, *filters = _FILTERED.split(name)
    chosen = {key: value.split(",") for key, value in zip(filters[::2], filters[1::2], strict=True)}
    shipped = names()
    files = [sets] if sets in shipped else sets.split("+")
    return {
        "prompts": [one for one in files if one],
        **chosen,
        **{key: value for key, value in options.items() if value},
    }
