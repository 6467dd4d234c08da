"""In which fields of a chat message an answer arrived: reasoning, content, tool calls. Pure.

The joined text of two answers can be the same while a parser put it in another field, or lost the arguments of a call.
"""

from __future__ import annotations

import json
from typing import Any

import regex

from verifier.compare.divergence import common_prefix
from verifier.records import Completion
from verifier.records.answers import FunctionCall

LONGEST_SHOWN = 120
"""Characters of a name or of arguments that a sentence quotes."""

MARKUP_LETTERS = 60
"""Letters and digits of markup that a call may have around its name and its values where it was left in the text."""

_THINK_MARK = regex.compile(r"</?(?:think|thinking|reasoning|thought)>|\[/?THINK\]|◁/?think▷")
_CALL_MARK = regex.compile(r"<[\w|｜]|[{\[]\s*\"|\[TOOL")
_SPACE = regex.compile(r"\s+")


def same_parts(a: Completion, b: Completion) -> bool:
    """Whether both answers arrived in the same fields, with the same tool calls, as far as that is known."""
    return a.tool_calls == b.tool_calls and not _reasoning_moved(a, b)


def moved(ref: Completion, spec: Completion) -> tuple[str, ...]:
    """What arrived in another field, and which tool calls differ, as clauses; nothing where the parts are the same."""
    return (*_of_reasoning(ref, spec), *_of_calls(ref.tool_calls, spec.tool_calls))


def only_layout(ref: Completion, spec: Completion) -> bool:
    """Whether the parts differ, but only in the white space, key order or escapes of arguments."""
    if _reasoning_moved(ref, spec) or len(ref.tool_calls) != len(spec.tool_calls):
        return False
    pairs = list(zip(ref.tool_calls, spec.tool_calls, strict=True))
    return ref.tool_calls != spec.tool_calls and all(
        one.name == other.name and _same_json(one.arguments, other.arguments) for one, other in pairs
    )


def left_in_text(ref: Completion, spec: Completion) -> str:
    """What one server parsed and the other left in the text, as a clause; empty where that is not the difference."""
    for parsed, raw, place in ((ref, spec, "the speculative server"), (spec, ref, "the reference")):
        if parsed.tool_calls and not raw.tool_calls and _holds_calls(raw.text, parsed):
            count = len(parsed.tool_calls)
            return f"{place} left {'the tool call' if count == 1 else f'{count} tool calls'} in the text"
        if parsed.reasoning_length and raw.reasoning_length == 0 and _THINK_MARK.search(raw.text):
            plain = _THINK_MARK.sub("", raw.text)
            if parsed.tool_calls == raw.tool_calls and _SPACE.sub("", plain) == _SPACE.sub("", parsed.text):
                return f"{place} left the reasoning in the content"
    return ""


def _reasoning_moved(a: Completion, b: Completion) -> bool:
    if a.reasoning_length is None or b.reasoning_length is None or a.reasoning_length == b.reasoning_length:
        return False
    # Of texts that differ, the lengths differ with them; only reasoning on one side alone says something.
    return a.text == b.text or not a.reasoning_length or not b.reasoning_length


def _of_reasoning(ref: Completion, spec: Completion) -> tuple[str, ...]:
    if not _reasoning_moved(ref, spec):
        return ()
    before, now = ref.reasoning_length or 0, spec.reasoning_length or 0
    if not before and now == len(spec.text):
        return ("the whole answer came as reasoning_content instead of content",)
    if not now and before == len(ref.text):
        return ("the whole answer came as content instead of reasoning_content",)
    if not now:
        return (f"no reasoning_content came, instead of {_characters(before)}",)
    return (f"the first {_characters(now)} came as reasoning_content instead of {before or 'content'}",)


def _of_calls(ref: tuple[FunctionCall, ...], spec: tuple[FunctionCall, ...]) -> tuple[str, ...]:
    if len(ref) != len(spec):
        count = f"{len(spec) or 'no'} tool call{'s' if len(spec) > 1 else ''}"
        return (f"{count} instead of {len(ref) or 'none'}",)
    for place, (one, other) in enumerate(zip(ref, spec, strict=True), 1):
        # One call that differs says enough; a broken parser breaks them all.
        if one.name != other.name:
            return (f"tool call {place}: name {_quoted(other.name)} instead of {_quoted(one.name)}",)
        if one.arguments != other.arguments:
            at = common_prefix(one.arguments, other.arguments)
            now, before = _quoted(other.arguments, at), _quoted(one.arguments, at)
            return (f"tool call {place}: arguments {now} instead of {before}",)
    return ()


def _characters(count: int) -> str:
    return "1 character" if count == 1 else f"{count} characters"


def _quoted(text: str, at: int = 0) -> str:
    """``text``, shortened to what is around ``at``."""
    start = max(0, at - LONGEST_SHOWN // 2) if len(text) > LONGEST_SHOWN else 0
    shown = text[start : start + LONGEST_SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + len(shown) < len(text) else ''}" or "(empty)"


def _same_json(one: str, other: str) -> bool:
    try:
        return bool(_canonical(one) == _canonical(other))
    except (ValueError, RecursionError):
        return one == other


def _canonical(text: str) -> Any:
    """A JSON value without its layout. Numbers stay as they are written: 1.0 is not 1 for whoever takes the call."""
    return json.loads(
        text,
        parse_float=lambda digits: ("number", digits),
        parse_int=lambda digits: ("number", digits),
        parse_constant=_refuse,
        object_pairs_hook=lambda pairs: ("object", sorted(pairs, key=lambda pair: pair[0])),
    )


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _holds_calls(text: str, parsed: Completion) -> bool:
    """Whether ``text`` is the content of ``parsed``, and then its calls in any markup, and little else."""
    content = parsed.text.strip()
    if not text.lstrip().startswith(content):
        return False
    rest = text.lstrip()[len(content) :]
    room = 0
    for call in parsed.tool_calls:
        try:
            words = [call.name, *_words(json.loads(call.arguments or "{}", parse_float=str, parse_int=str))]
        except (ValueError, RecursionError):
            words = [call.name, call.arguments]
        if not _CALL_MARK.search(rest) or not regex.search(rf"(?<!\w){regex.escape(call.name)}(?!\w)", rest):
            return False
        if not all(word in rest for word in words):
            return False
        room += sum(map(len, words)) + MARKUP_LETTERS
    return sum(map(str.isalnum, rest)) <= room


def _words(value: Any) -> list[str]:
    """Every key and every plain value of a JSON value, as text."""
    if isinstance(value, dict):
        return [word for key, item in value.items() for word in (key, *_words(item))]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    return [value] if isinstance(value, str) else []
