"""Prompt sets: JSON Lines files of `Prompt` records, found by name or path and validated before anything is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jsonlines
import msgspec

import verifier
from verifier.bounds import MOST_TOKENS, Bound
from verifier.errors import PromptSetError
from verifier.records import Parameters, Prompt
from verifier.run_options import problem

SUFFIX = ".jsonl"
MOST_BIAS = 100.0
"""As in OpenAI's API; engines refuse more."""
TOKENS = Bound(int, 0, MOST_TOKENS)
LONGEST_ID = 200
"""Characters. Ids are printed in tables and used in file names of reports."""


def folders() -> tuple[Path, ...]:
    """Where named prompt sets live: inside an installed package, or beside the package in a checkout."""
    package = Path(verifier.__file__).parent
    return tuple(f for f in (package / "_prompt_sets", package.parent / "prompt_sets") if f.is_dir())


def names() -> list[str]:
    """The names of the sets that came with the tool, sorted."""
    return sorted({path.stem for folder in folders() for path in folder.glob(f"*{SUFFIX}")})


def find(name_or_path: str) -> Path:
    """The file of a set given by name (``seed8``, or ``mine`` for ``mine.jsonl`` in this folder) or path.

    A path wins over a name.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise PromptSetError(f"{path} is a folder.", "Name a JSONL file in it.")
    if path.name == name_or_path:
        for folder in folders():
            candidate = folder / f"{name_or_path.removesuffix(SUFFIX)}{SUFFIX}"
            if candidate.is_file():
                return candidate
        # A header names a set of one's own without its suffix.
        if (own := path.with_name(f"{path.name}{SUFFIX}")).is_file():
            return own
    known = ", ".join(names()) or "none"
    raise PromptSetError(
        f"There is no prompt set {name_or_path!r}.", f"Give the path of a JSONL file, or one of these names: {known}."
    )


class Prompts(Protocol):
    """Prompts that can be gone through any number of times: a set on disk, a selection, those of a recorded file."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """16 hex digits that change with any prompt."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Prompt]: ...


def parse(line: str) -> Prompt:
    """One line of a prompt set.

    Raises:
        ValueError: with a message that names the field and what is wrong with it.
    """
    try:
        raw = jsonlines.Reader([line], loads=_loads).read(type=dict)
    except jsonlines.InvalidLineError as error:
        cause = error.__cause__
        detail = f": {cause.msg} at column {cause.colno}" if isinstance(cause, json.JSONDecodeError) else ""
        detail = detail or (f": {cause}" if isinstance(cause, ValueError) else "")
        raise ValueError(f"this is not a JSON object{detail}") from None
    try:
        prompt = msgspec.convert(raw, Prompt)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    _require_finite(raw, "")
    if not prompt.id.strip() or not prompt.id.isprintable() or len(prompt.id) > LONGEST_ID:
        raise ValueError(f"`id` must be 1 to {LONGEST_ID} printable characters")
    if prompt.id.lstrip().startswith("::") or "##[" in prompt.id:
        raise ValueError("`id` must not begin with `::` or contain `##[`, which CI runners read as commands")
    if not prompt.text and not prompt.messages:
        raise ValueError("a prompt needs `prompt` (text) or `messages`, not empty")
    wrong = None if prompt.max_tokens is None else problem("max_tokens", prompt.max_tokens)
    if wrong:
        raise ValueError(wrong)
    _check_parameters(prompt)
    _check_tools(prompt)
    try:
        msgspec.json.encode(prompt)
    except UnicodeEncodeError:
        raise ValueError("the text holds half of a surrogate pair, which is not a character") from None
    return prompt


def _no_number(word: str) -> None:
    """JSON has no such number, and it would be sent as ``null``."""
    raise ValueError(f"{word} is not a number")


_loads = partial(json.loads, parse_constant=_no_number)


def _require_finite(value: Any, place: str) -> None:
    """A number too large for a float, such as 1e999, is read as infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{place}` is not a finite number")
    if isinstance(value, dict):
        for name, inner in value.items():
            _require_finite(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _require_finite(inner, f"{place}[{number}]")


def _check_tools(prompt: Prompt) -> None:
    if prompt.parameters.tools and not prompt.messages:
        raise ValueError("`parameters.tools` needs `messages`: the chat template shows the tools to the model")
    named = {f"parameters.tools[{number}]": tool for number, tool in enumerate(prompt.parameters.tools)}
    for number, message in enumerate(prompt.messages or ()):
        named |= {f"messages[{number}].tool_calls[{place}]": call for place, call in enumerate(message.tool_calls)}
    for where, given in named.items():
        function = given.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if given.get("type") != "function" or not name or not isinstance(name, str):
            raise ValueError(f'`{where}` is not of the form {{"type": "function", "function": {{"name": …}}}}')


def _check_penalties(parameters: Parameters) -> None:
    penalties = (parameters.repetition_penalty, parameters.presence_penalty, parameters.frequency_penalty)
    if not all(math.isfinite(penalty) for penalty in penalties):
        raise ValueError("a penalty in `parameters` is not a finite number")
    if parameters.repetition_penalty <= 0:
        raise ValueError(
            f"`parameters.repetition_penalty` is {parameters.repetition_penalty:g}; it must be greater than 0"
        )


def _check_parameters(prompt: Prompt) -> None:
    parameters = prompt.parameters
    _check_penalties(parameters)
    if any(not stop for stop in parameters.stop):
        raise ValueError("`parameters.stop` holds an empty string")
    for name in ("logit_bias", "text_bias"):
        for token, value in getattr(parameters, name).items():
            if not -MOST_BIAS <= value <= MOST_BIAS:
                raise ValueError(f"`parameters.{name}` adds {value} to {token!r}; the range is -100 to 100")
    for token in parameters.logit_bias:
        if not (token.isascii() and token.isdecimal()):
            raise ValueError(f"`parameters.logit_bias` names {token!r}, which is not a token id; text_bias takes texts")
    if "" in parameters.text_bias:
        raise ValueError("`parameters.text_bias` names an empty text")
    for name in ("min_tokens", "thinking_budget"):
        value = getattr(parameters, name)
        wrong = None if value is None else TOKENS.problem(value)
        if wrong:
            raise ValueError(f"`parameters.{name}` {wrong}")
    if prompt.max_tokens is not None and parameters.min_tokens > prompt.max_tokens:
        raise ValueError(
            f"`parameters.min_tokens` is {parameters.min_tokens}, more than max_tokens {prompt.max_tokens}"
        )
    if parameters.json_schema is not None and parameters.grammar:
        raise ValueError("`parameters` has both json_schema and grammar; an answer follows one of them")
