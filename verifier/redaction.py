"""Command lines without the secrets in them, so that they can be stored and printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "…"
"""Stands where a secret was."""

_SHORTEST = 4
"""Characters of a secret that is looked for in a log; a shorter one would take half of the log with it."""

_NAME = r"[\w-]*(?:keys?|token|secrets?|password|passwd|passphrase|pwd|credentials?|authorization|bearer)"
_NOT_SECRET = re.compile(r"(?:^|[-_])(?:bos|eos|eot|pad|unk|sep|cls|mask|image|stop|draft|special)[-_]token$", re.I)
"""Tokens of a vocabulary."""

_OPTION = re.compile(rf"--?{_NAME}", re.I)
_ASSIGNED = re.compile(rf"((?:--?)?({_NAME}))=(.+)", re.I | re.S)

_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""", re.S)
"""A word of a shell command as it is written, quotes included."""

_SHELL_COMMAND = re.compile(r"-[a-z]*c")
"""Of ``sh -c``, ``bash -lc``: the next word is a command line itself."""

_VALUE = r"""(?:\\?"[^"]*"|'[^']*'|[^\s"',;&|}\]]+)"""
_INSIDE = (
    # --api-key VALUE, NAME_TOKEN=VALUE, "api_key": "VALUE", Authorization: VALUE: within quotes, as in `sh -c '…'`.
    re.compile(rf"((?<![\w-])--({_NAME})[ \t=]+)(?![-…])({_VALUE})", re.I),
    re.compile(rf"((?<![\w-])({_NAME})=)(?!…)({_VALUE})", re.I),
    re.compile(rf"((?<![\w-])({_NAME})\\?[\"']?\s*:\s*(?:(?:bearer|basic)\s+)?)(?![\s…])({_VALUE})", re.I),
)
_BEARER = re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{4,}", re.I)
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s\"'@]*(?:@[^/\s\"'@]*)*@", re.I)
_QUERY = re.compile(r"(\bhttps?://[^\s?\"'#]*\?)[^\s\"'#]+", re.I)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|"
    r"xox[a-z]-[\w-]{8,}|AKIA[0-9A-Z]{12,}|nvapi-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]+)?)"
    # Short ones differ from names such as `hf_cache` and `--hf_overrides` in a digit or capital.
    r"|(?<![\w/.-])(?:hf_|sk-)(?=[\w-]*[0-9A-Z])[\w-]{4,}(?![\w/.-])"
)
"""Secrets that show what they are: of Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, NVIDIA, and JSON Web Tokens."""


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret: ``--api-key``, ``HF_TOKEN``."""
    name = name.lstrip("-")
    return re.fullmatch(_NAME, name, re.I) is not None and _NOT_SECRET.search(name) is None


def without_secrets(command: str) -> str:
    """A command line with values that look secret replaced by `HIDDEN`; everything else stays as it is written.

    Secret are the values of options and variables that are called so (``--api-key``, ``HF_TOKEN=``), users and queries
    in addresses, HTTP authorization, and tokens of known forms (``hf_…``, ``sk-…``), also within quotes.
    """
    parts: list[str] = []
    end = 0
    for start, shown, stop in _shown_words(command):
        parts += [command[end:start], shown]
        end = stop
    return _without_inner("".join([*parts, command[end:]]))


def secrets_in(words: Sequence[str], environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """The secret values in the words of a command and in the variables that are set for it, to be kept out of logs."""
    found = {value for name, value in (environment or {}).items() if is_secret_name(name)}
    option = False
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        if assigned and is_secret_name(assigned[2]):
            found.add(assigned[3])
        elif option and not word.startswith("-"):
            found.add(word)
        option = _OPTION.fullmatch(word) is not None and is_secret_name(word)
        value = _json_in(word)
        if value is not None:
            found.update(_json_secrets(value[1]))
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def masked(text: str, secrets: Collection[str]) -> str:
    """``text`` with these secrets replaced by `HIDDEN`."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _shown_words(command: str) -> Iterator[tuple[int, str, int]]:
    """Start, text and end of each word, secrets replaced."""
    option = before = ""
    for match in _WORD.finditer(command):
        raw = match.group()
        word = _unquoted(raw)
        assigned = _ASSIGNED.fullmatch(word)
        if _SHELL_COMMAND.fullmatch(before):
            inner = without_secrets(word)
            raw = raw if inner == word else shlex.quote(inner)
        elif option and not word.startswith("-") and "{port}" not in word:
            raw = HIDDEN
            # vLLM takes several keys behind this one.
            option = option if option.replace("_", "-") == "--api-key" else ""
        elif assigned and is_secret_name(assigned[2]):
            raw, option = f"{assigned[1]}={HIDDEN}", ""
        elif (value := _json_in(word)) is not None and _json_secrets(value[1]):
            option = ""
            raw = shlex.quote(value[0] + json.dumps(_json_masked(value[1]), ensure_ascii=False, separators=(",", ":")))
        else:
            option = word.lower() if _OPTION.fullmatch(word) and is_secret_name(word) else ""
        yield match.start(), raw, match.end()
        before = word


def _json_in(word: str) -> tuple[str, Any] | None:
    """What stands before a JSON object or array in a word, such as ``--config=``, and its value."""
    start = re.match(r"(?:--?[\w.-]+=)?(?=[{\[])", word)
    if start is None:
        return None
    try:
        return start.group(), json.loads(word[start.end() :])
    except (ValueError, RecursionError):
        return None


def _json_secrets(value: Any, *, inside: bool = False) -> set[str]:
    """The plain values below names of secrets, as text."""
    if isinstance(value, dict):
        named = ((inner, inside or is_secret_name(name)) for name, inner in value.items())
        return {one for inner, below in named for one in _json_secrets(inner, inside=below)}
    if isinstance(value, list):
        return {one for inner in value for one in _json_secrets(inner, inside=inside)}
    return {str(value)} if inside and value not in (None, "", True, False) else set()


def _json_masked(value: Any) -> Any:
    """A JSON value with everything below names of secrets replaced by `HIDDEN`."""
    if isinstance(value, dict):
        return {name: HIDDEN if is_secret_name(name) else _json_masked(inner) for name, inner in value.items()}
    return [_json_masked(inner) for inner in value] if isinstance(value, list) else value


def _unquoted(raw: str) -> str:
    try:
        return "".join(shlex.split(raw))
    except ValueError:
        return raw


def _without_inner(text: str) -> str:
    """Secrets that are only a part of a word, or in a text that is not a command line."""
    for pattern in _INSIDE:
        text = pattern.sub(lambda match: match[1] + HIDDEN if is_secret_name(match[2]) else match[0], text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))
    return _KNOWN.sub(HIDDEN, text)


def public_address(address: str) -> str:
    """A server's address without user, password and query; the model behind ``#`` stays, unless it is a token."""
    address = re.sub(r"(^|//)[^/]*@", r"\1", address)
    return _without_inner(re.sub(r"\?[^#]*", "", address))


def rejected_address(text: str) -> str:
    """A text that is not an address, as an error may show it: users, passwords and queries can be anywhere in it."""
    scheme = re.match(r"(?:https?:/*)?", text, re.I)
    start = scheme.group() if scheme else ""
    rest = text[len(start) :]
    if "@" in rest:
        rest = f"{HIDDEN}@{rest.rpartition('@')[2]}"
    return _without_inner(start + re.sub(r"\?.*", f"?{HIDDEN}", rest, flags=re.S))


def has_secret(text: str) -> bool:
    """Whether a part of an address looks like a secret: ``api_key=…``, or a token of a known form."""
    return _without_inner(text) != text
